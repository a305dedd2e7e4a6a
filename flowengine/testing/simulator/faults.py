"""What goes wrong in a simulated run, and when.

Time is counted in ticks: every piece of work, message, and write to the disk is one. A fault
strikes at a tick, so it may strike in the middle of a piece of work, between two messages that are
sent together, or between a part's two files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flowengine.api import Source
from flowengine.graph.description import StageSpec
from flowengine.testing.simulator.choices import Choices

What = Literal["kill", "end the supervisor", "interrupt"]
_WHAT: tuple[What, ...] = ("kill", "kill", "kill", "end the supervisor", "interrupt")

HORIZON = 200
"""Ticks in which faults strike: about as many as a run has."""


class Killed(BaseException):
    """The worker at work is gone."""


class SupervisorEnded(BaseException):
    """The supervisor is gone, and all workers with it."""


@dataclass(frozen=True)
class Fault:
    """worker: whom a kill strikes if nobody is at work."""

    tick: int
    what: What
    worker: int


@dataclass(frozen=True)
class Poison:
    """A sample that kills every worker of a stage that takes it in hand; a source, reading it."""

    sample: int
    stage: str

    def kills(self, stage: StageSpec, samples: tuple[int, ...]) -> bool:
        """Whether these samples kill a worker of this stage."""
        if stage.name != self.stage or self.sample not in samples:
            return False
        return len(samples) == 1 or not isinstance(stage.what, Source)


def draw_faults(choices: Choices, *, most: int) -> list[Fault]:
    """At most so many, the last first."""
    found = []
    for _ in range(choices.below(most + 1)):
        tick, what = choices.below(HORIZON), _WHAT[choices.below(len(_WHAT))]
        found.append(Fault(tick, what, choices.below(16)))
    return sorted(found, key=lambda fault: -fault.tick)
