"""What a stage's work is measured by: positions, pairs of positions that attend to each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flowengine.api import Lengths

TOKENS = ""
"""The modality of a language model's load: its tokens."""


@dataclass(frozen=True)
class Load:
    """Sums over the samples of a pack that a stage has work with.

    samples: how many. rows: tokens, or feature rows of a modality. squares: of rows per sample.
    """

    samples: int = 0
    rows: float = 0.0
    squares: float = 0.0

    @property
    def terms(self) -> tuple[float, float, float, float]:
        """What the coefficients of a Line are multiplied with."""
        return (float(self.samples > 0), float(self.samples), self.rows, self.squares)

    def __add__(self, other: Load) -> Load:
        return Load(
            self.samples + other.samples, self.rows + other.rows, self.squares + other.squares
        )


def load_of(members: Iterable[Lengths], modality: str) -> Load:
    """The load of a pack; a sample without the modality counts for nothing."""
    rows = [m.tokens if modality == TOKENS else m.media.get(modality, 0) for m in members]
    there = [row for row in rows if row]
    return Load(len(there), float(sum(there)), float(sum(row * row for row in there)))


def total_load(loads: Iterable[Load]) -> Load:
    """The sum of these loads."""
    total = Load()
    for load in loads:
        total += load
    return total


def mean_load(loads: Sequence[Load]) -> Load:
    """The mean of these loads, of at least one; samples rounded up."""
    whole, count = total_load(loads), len(loads)
    return Load(-(-whole.samples // count), whole.rows / count, whole.squares / count)


@dataclass(frozen=True)
class Line:
    """Seconds of one piece of work: constant + sample * samples + row * rows + square * squares."""

    constant: float = 0.0
    sample: float = 0.0
    row: float = 0.0
    square: float = 0.0

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        return (self.constant, self.sample, self.row, self.square)

    def seconds(self, load: Load) -> float:
        """What work on this load takes; nothing where there is no sample."""
        pairs = zip(self.coefficients, load.terms, strict=True)
        return sum(each * term for each, term in pairs)

    def __add__(self, other: Line) -> Line:
        return Line(
            self.constant + other.constant,
            self.sample + other.sample,
            self.row + other.row,
            self.square + other.square,
        )

    def scaled(self, factor: float) -> Line:
        """The line times a number."""
        return Line(
            factor * self.constant, factor * self.sample, factor * self.row, factor * self.square
        )
