"""Rounds: the stretches between two barriers.

A round is a training step, or one evaluation. Rounds are numbered in the order in which the source
begins them; every stage sees them in that order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flowengine.api import Source
from flowengine.graph import Graph


@dataclass(frozen=True)
class Round:
    """What every stage knows of a round when it opens.

    step: the training step, or for an evaluation the number of steps trained before it. A weight
    version is the number of optimizer steps behind it, so a round at staleness 0 wants version
    `step`. pack_sizes: samples per pack of the plan, empty without a packer. targets: of all packs.
    """

    number: int
    step: int
    held_out: bool
    samples: int
    targets: int
    pack_sizes: tuple[int, ...]

    def to_fields(self) -> list[Any]:
        """As a message carries it."""
        return [
            self.number,
            self.step,
            self.held_out,
            self.samples,
            self.targets,
            self.pack_sizes,
        ]

    @classmethod
    def from_fields(cls, fields: list[Any]) -> Round:
        """From what `to_fields` gave."""
        number, step, held_out, samples, targets, pack_sizes = fields
        return cls(number, step, held_out, samples, targets, tuple(pack_sizes))


@dataclass(frozen=True)
class Stretch:
    """Which samples of which source a round takes: indices [start, stop)."""

    number: int
    step: int
    held_out: bool
    start: int
    stop: int


def num_steps(graph: Graph, source: Source[Any]) -> int:
    """How many steps the run trains; the last may be smaller when the source ends."""
    if graph.steps is not None:
        return graph.steps
    total = source.num_samples()
    assert total is not None, "a source without end was refused by the checks"
    return -(-total // graph.step.samples)


def stretches(graph: Graph, source: Source[Any]) -> Iterator[Stretch]:
    """All rounds of the run. With `steps`, a finite source begins again after its last sample."""
    total, size = source.num_samples(), graph.step.samples
    steps, number = num_steps(graph, source), 0
    for step in range(steps):
        stop = (step + 1) * size
        if graph.steps is None and total is not None:
            stop = min(stop, total)
        yield Stretch(number, step, False, step * size, stop)
        number += 1
        for evaluation in graph.evaluations:
            done = step + 1
            if done == steps or (evaluation.every and done % evaluation.every == 0):
                yield Stretch(number, done, True, 0, evaluation.samples)
                number += 1


def derive_seed(seed: int, *parts: str | int) -> int:
    """A seed for one purpose: the first 63 bits of SHA-256 over the run's seed and the parts."""
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
