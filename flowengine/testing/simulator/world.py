"""One incarnation of a simulated run: the stages and coordinator of the runtimes, on links that
deliver in order and whenever the schedule has it.

Rules.
- A link carries the messages of one worker to another, in order. All links and workers are
  independent of each other: the schedule chooses which goes on next.
- A worker that has nothing to do sleeps until a message wakes it, as the local runtime's do.
- What the dead have sent still arrives; what is sent to the dead is dropped.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from flowengine.channel import Kind, Message
from flowengine.runtime.coordinator import Coordinator
from flowengine.runtime.events import Event, LeftOut, StepDone
from flowengine.runtime.saver import make_publisher
from flowengine.runtime.site import make_site
from flowengine.runtime.stage import Stage
from flowengine.runtime.stages import make_stage
from flowengine.runtime.start import Start
from flowengine.runtime.topology import COORDINATOR, Topology
from flowengine.testing.simulator.actors import (
    Actor,
    DeathActor,
    LinkActor,
    PublisherActor,
    WorkerActor,
    WriterActor,
)
from flowengine.testing.simulator.choices import Choices
from flowengine.testing.simulator.disk import (
    RUN_DIR,
    Disk,
    NumberFolder,
    NumberStore,
)
from flowengine.testing.simulator.faults import Killed, Poison
from flowengine.testing.simulator.numbers import (
    Memory,
    NumberEncoder,
    NumberObjective,
    NumberPool,
)
from flowengine.testing.simulator.settings import Setting
from flowengine.testing.simulator.watch import Watch, breaks, check_checkpoint

Tick = Callable[["Incarnation", str], None]

MOST_EVENTS = 6000
"""Events after the last fault in which a run must end; the longest of 100,000 seeds had a third."""

SLOWNESS = 12
"""Of so many chances what is slow takes one."""


class Incarnation:
    """number: which of the run's. tick: told of all that takes time, and may raise Killed."""

    def __init__(
        self,
        number: int,
        given: Setting,
        topology: Topology,
        *,
        start: Start,
        disk: Disk,
        choices: Choices,
        tick: Tick,
        poison: Poison | None,
        mail: dict[tuple[int, int], deque[tuple[int, Message]]],
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.number = number
        self.given = given
        self.topology = topology
        self.choices = choices
        self.tick = tick
        self.trace = trace
        self._poison = poison
        self.watch = Watch(given, topology, start)
        self.memory = Memory()
        self.in_hand: dict[int, tuple[int, ...]] = {w.index: () for w in topology.workers}
        self.at_work: WorkerActor | None = None
        self.events = 0
        self._now = 0.0
        self._enabled: list[Actor] = []
        self.links: dict[tuple[int, int], LinkActor] = {}
        self.publishing = PublisherActor(self)
        self._disk = disk
        self.coordinator = Coordinator(
            topology,
            post=lambda to, message: self.post(COORDINATOR, to, message),
            observe=self._observe,
            clock=self.clock,
            start=start,
        )
        self._folder = NumberFolder(disk, lambda what: tick(self, what), check_checkpoint)
        self._publisher = make_publisher(topology, self.coordinator, folder=self._folder)
        self._losses_told = 0
        self._is_done = False
        self.workers = [
            WorkerActor(self, self._make_stage(w.index, start)) for w in topology.workers
        ]
        for key, left in mail.items():
            self._link(*key).mail.extend(left)
        for worker in self.workers:
            self.at_work = worker
            worker.stage.open()
            self.go(worker)
        self.at_work = None

    def run(self) -> None:
        """To the end; WorkerLostError when a death is noticed, BrokenError if it does not end."""
        enabled, choices = self._enabled, self.choices
        while not self._is_done:
            if not enabled:
                breaks(f"nobody can go on: {self._describe_waits()}")
            actor = enabled[choices.below(len(enabled))]
            if actor.slow and choices.below(SLOWNESS):
                actor = enabled[choices.below(len(enabled))]
            self._act(actor)
            if self.events > MOST_EVENTS:
                breaks(f"not at its end after {MOST_EVENTS} events: {self._describe_waits()}")
        self._finish()

    def _act(self, actor: Actor) -> None:
        self.events += 1
        if self.trace is not None:
            self.trace(self._describe(actor))
        self.at_work = actor if isinstance(actor, WorkerActor) else None
        with suppress(Killed):
            actor.act()
        self.at_work = None

    def _finish(self) -> None:
        for link in list(self.links.values()):
            while link.mail:
                self.deliver(link, *link.mail.popleft())
        self.publish()
        self.watch.on_end([worker.stage.pool.used_bytes for worker in self.workers])

    def histories(self, name: str) -> list[tuple[tuple[int, ...], ...]]:
        """What the replicas of a stage were trained on, step by step."""
        stages = [worker.stage for worker in self.workers if worker.stage.spec.name == name]
        return [tuple(s.trainer.history) for s in stages if isinstance(s, NumberObjective)]

    def clock(self) -> float:
        """A time later than all that it has told before."""
        self._now += 1.0
        return self._now

    # the schedule

    def go(self, actor: Actor) -> None:
        """It can go on."""
        if actor.place < 0:
            actor.place = len(self._enabled)
            self._enabled.append(actor)

    def stop(self, actor: Actor) -> None:
        """It cannot, for now."""
        if actor.place >= 0:
            last = self._enabled.pop()
            if last is not actor:
                self._enabled[actor.place] = last
                last.place = actor.place
            actor.place = -1

    # messages

    def post(self, sender: int, to: int, message: Message) -> None:
        """A worker or the coordinator sends."""
        if sender != COORDINATOR:
            self.tick(self, "")
            self.watch.on_post(sender, message)
        link = self._link(sender, to)
        link.mail.append((self.number, message))
        self.go(link)

    def deliver(self, link: LinkActor, incarnation: int, message: Message) -> None:
        """The next message of a link has arrived."""
        if link.to == COORDINATOR:
            self._check_incarnation(incarnation, message)
            if message[1] == "done" and self.workers[message[2]].stage.pool.num_spans:
                breaks(f"{self._label(message[2])} is done, and has payloads on lease")
            self.coordinator.handle(message)
            self._is_done = self.coordinator.is_done
            if len(self.coordinator.losses) != self._losses_told:
                self._losses_told = len(self.coordinator.losses)
                self.go(self.publishing)
            return
        worker = self.workers[link.to]
        if worker.is_dead:
            return
        self._check_incarnation(incarnation, message)
        before, self.at_work = self.at_work, worker
        worker.stage.handle(link.sender, message)
        self.at_work = before
        self.watch.on_handled(message)
        self.go(worker)

    def _check_incarnation(self, incarnation: int, message: Message) -> None:
        if incarnation != self.number:
            breaks(f"{message} of incarnation {incarnation} is handled by {self.number}")

    def _link(self, sender: int, to: int) -> LinkActor:
        link = self.links.get((sender, to))
        if link is None:
            link = self.links[sender, to] = LinkActor(self, sender, to)
        return link

    def interrupt(self) -> None:
        """A signal: everybody is told to finish."""
        for worker in self.workers:
            self.post(COORDINATOR, worker.index, (Kind.NOTICE, "finish"))

    def kill(self, worker: WorkerActor) -> None:
        """The worker is gone, and the supervisor will notice."""
        if not worker.is_dead:
            worker.is_dead = True
            worker.died_at_work = worker is self.at_work
            self.stop(worker)
            self.go(DeathActor(self, worker))

    def publish(self) -> None:
        """The supervisor looks for whole checkpoints."""
        self._publisher.poll()

    # workers

    def _make_stage(self, index: int, start: Start) -> Stage:
        worker = self.topology.workers[index]
        site = make_site(
            self.topology,
            index,
            pool=NumberPool(index, worker.limit, self.memory, self.watch),
            post=lambda to, message: self.post(index, to, message),
            clock=self.clock,
            run_dir=RUN_DIR,
            on_hand=lambda samples: self._take_in_hand(index, samples),
            start=start,
            parts=NumberStore(
                self._disk,
                lambda what: self.tick(self, what),
                lambda writer: self.go(WriterActor(self, writer, index)),
            ),
        )
        own = copy.copy(worker.stage.what)  # A worker has its operator to itself.
        site.worker = replace(worker, stage=replace(worker.stage, what=own))
        self.watch.attach(site)
        return make_stage(site, encoder=NumberEncoder, objective=NumberObjective)

    def _take_in_hand(self, worker: int, samples: tuple[int, ...]) -> None:
        self.in_hand[worker] = samples
        self.tick(self, "")
        stage = self.topology.workers[worker].stage
        if self._poison is not None and self._poison.kills(stage, samples):
            self.kill(self.workers[worker])
            raise Killed

    def _observe(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self.watch.on_ledger(event)
        elif isinstance(event, LeftOut) and event.sample not in self.watch.letters:
            breaks(f"sample {event.sample} is left out: {event.reason}")

    # words

    def _describe(self, actor: Actor) -> str:
        if isinstance(actor, LinkActor) and actor.mail:
            return f"{self._label(actor.sender)} -> {self._label(actor.to)}: {actor.mail[0][1]}"
        if isinstance(actor, WorkerActor):
            return f"{self._label(actor.index)} goes on"
        return type(actor).__name__.removesuffix("Actor").lower()

    def _label(self, worker: int) -> str:
        return "coordinator" if worker == COORDINATOR else self.topology.workers[worker].label

    def _describe_waits(self) -> str:
        return "; ".join(
            f"{self._label(w.index)} is {'dead' if w.is_dead else w.stage.waits.state}"
            f" on {w.stage.waits.on}"
            for w in self.workers
        )
