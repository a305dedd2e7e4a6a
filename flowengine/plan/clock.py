"""Discrete events: actors that take up jobs, and cores that the running jobs share.

Rules.
- An actor does one job at a time. When it is idle and something it may wait for has changed, it is
  asked for its next job; it answers with a Job, or with the Wait it is in.
- A job's seconds are those it takes alone. Running jobs share the cores evenly: with more jobs than
  cores each gets cores / jobs of one.
- Everything is in order: actors are asked in the order they were given, and jobs that end at the
  same time end in the order they began. So equal inputs give equal times, on every machine.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Job:
    """A piece of work. what, step, pack: as spans have them. done: called at its end."""

    what: str
    step: int
    pack: int
    seconds: float
    done: Callable[[], None]


@dataclass(frozen=True)
class Wait:
    """Why an actor has no job; "" where it is at its end."""

    state: Literal["starved", "blocked"]
    cause: str


END = Wait("starved", "")


@dataclass(frozen=True)
class Stretch:
    """What an actor did, or waited for, from `began` to `ended`, in simulated seconds."""

    actor: int
    state: Literal["busy", "blocked", "starved"]
    what: str
    step: int
    pack: int
    began: float
    ended: float


class Actor(ABC):
    """Something that works: a replica, or a pipeline part of one.

    stage: its name. replica, part: which of them.
    """

    def __init__(self, stage: str, replica: int, part: int = 0) -> None:
        self.stage = stage
        self.replica = replica
        self.part = part
        self.index = -1

    @abstractmethod
    def next(self) -> Job | Wait:
        """What it does now."""


class Clock:
    """Runs actors until none has a job.

    cores: what the jobs share; None gives every actor a device of its own. slowdown: by how much a
    job takes longer while as many others run, from its index: [alone, with one other, ...]; the
    last holds for more.
    """

    def __init__(
        self,
        actors: Sequence[Actor],
        *,
        cores: int | None = None,
        slowdown: Sequence[float] = (1.0,),
    ) -> None:
        self.now = 0.0
        self.stretches: list[Stretch] = []
        self._actors = actors
        self._cores = cores
        self._slowdown = tuple(slowdown)
        self._served = 0.0
        self._running: list[tuple[float, int, int, float, Job]] = []
        self._begun = 0
        self._busy = [False] * len(actors)
        self._since: list[tuple[float, Wait | None]] = [(0.0, None)] * len(actors)
        self._asked: set[int] = set(range(len(actors)))
        for index, actor in enumerate(actors):
            actor.index = index

    def run(self) -> None:
        """To the end, when nobody has or gets a job."""
        while True:
            self._ask()
            if not self._running:
                return
            finish, _, index, began, job = heapq.heappop(self._running)
            self.now += max(0.0, finish - self._served) / self._rate(len(self._running) + 1)
            self._served = finish
            self._end(index, began, job)

    def wake(self, actor: Actor) -> None:
        """The actor is asked again, because something it may wait for has changed."""
        self._asked.add(actor.index)

    def _rate(self, running: int) -> float:
        slow = self._slowdown[min(running, len(self._slowdown)) - 1]
        share = 1.0 if self._cores is None else min(1.0, self._cores / running)
        return share / slow

    def _ask(self) -> None:
        while self._asked:
            asked, self._asked = sorted(self._asked), set()
            for index in asked:
                if not self._busy[index]:
                    self._take(index, self._actors[index].next())

    def _take(self, index: int, found: Job | Wait) -> None:
        if isinstance(found, Wait):
            if self._since[index][1] != found:
                self._close_wait(index)
                self._since[index] = (self.now, found)
            return
        self._close_wait(index)
        self._busy[index] = True
        self._begun += 1
        assert 0 <= found.seconds < math.inf, f"{found.what} takes {found.seconds} s"
        finish = self._served + found.seconds
        heapq.heappush(self._running, (finish, self._begun, index, self.now, found))

    def _end(self, index: int, began: float, job: Job) -> None:
        self._busy[index] = False
        if self.now > began:
            span = Stretch(index, "busy", job.what, job.step, job.pack, began, self.now)
            self.stretches.append(span)
        job.done()
        self._asked.add(index)

    def _close_wait(self, index: int) -> None:
        began, wait = self._since[index]
        self._since[index] = (self.now, None)
        if wait is not None and wait.cause and self.now > began:
            self.stretches.append(Stretch(index, wait.state, wait.cause, -1, -1, began, self.now))
