"""Finds a simpler run that fails, and tells it.

A run is the list of its choices, so a simpler run is a shorter list, or one with more zeros: chunks
are left out and set to zero, as long as what is left still fails. The method is delta debugging
(Zeller and Hildebrandt, 2002: "Simplifying and isolating failure-inducing input").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowengine.testing.simulator.choices import Choices
from flowengine.testing.simulator.run import Simulation
from flowengine.testing.simulator.settings import NUM_SETTINGS

TRIES = 1500


@dataclass(frozen=True)
class Failure:
    """A run that fails: its choices, what happened in it, and how it ended."""

    choices: tuple[int, ...]
    trace: tuple[str, ...]
    error: str


def fail(choices: Choices) -> Failure | None:
    """The run of these choices, if it fails."""
    trace: list[str] = []
    try:
        Simulation(choices, trace=trace.append).run()
    except Exception as error:
        return Failure(tuple(choices.taken), tuple(trace), f"{type(error).__name__}: {error}")
    return None


def shrink(failure: Failure, *, tries: int = TRIES) -> Failure:
    """The simplest failing run that was found in so many tries; fewer events are simpler."""
    best, left = _on_the_best_graph(failure), tries
    size = max(1, len(best.choices) // 2)
    while size and left > 0:
        smaller = None
        for candidate in _simpler(best.choices, size):
            left -= 1
            smaller = fail(Choices(given=candidate))
            if smaller is not None and _weight(smaller) < _weight(best):
                break
            smaller = None
            if left <= 0:
                break
        if smaller is None:
            size //= 2
        else:
            best = smaller
            size = min(size, max(1, len(best.choices) // 2))
    return best


def _on_the_best_graph(failure: Failure) -> Failure:
    """The same choices on whichever graph they fail on soonest."""
    others = (fail(Choices(given=[i, *failure.choices[1:]])) for i in range(NUM_SETTINGS))
    return min([failure, *(other for other in others if other is not None)], key=_weight)


def _simpler(choices: Sequence[int], size: int) -> Iterator[list[int]]:
    """The list without each chunk of this size, and with zeros there; the last chunks first."""
    for start in range(max(0, len(choices) - size), -1, -size):
        yield [*choices[:start], *choices[start + size :]]
        if any(choices[start : start + size]):
            yield [*choices[:start], *[0] * size, *choices[start + size :]]


def _weight(failure: Failure) -> tuple[int, int]:
    return len(failure.trace), sum(map(bool, failure.choices))
