"""How a picture enters a model, known from its size alone: what a source asks before decoding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

BICUBIC = 3
"""As PIL numbers its filters, and preprocessor_config.json with it."""


@dataclass(frozen=True)
class Fit:
    """The way into a model of a picture, or of some of a clip's frames.

    size: (width, height) in pixels to scale it to. grid: (frames, rows, columns) of its feature
    rows. tokens: the ids that stand for it in the text, a placeholder for each feature row among
    them. frames: how many of a clip's this is, next to each other; 0 for a picture.
    via: sizes that it is scaled to on the way. resample: the filter, as PIL numbers them.
    tiles: (rows, columns) to cut it into; behind the tiles, in reading order, comes the whole of
    it, at the size of one.
    """

    size: tuple[int, int]
    grid: tuple[int, int, int]
    tokens: tuple[int, ...]
    frames: int = 0
    via: tuple[tuple[int, int], ...] = ()
    resample: int = BICUBIC
    tiles: tuple[int, int] | None = None

    @property
    def num_pixels(self) -> int:
        """How many pixels it has when it is read."""
        rows, columns = self.tiles or (1, 1)
        one = math.prod(self.size) * max(1, self.frames)
        return one + (one // (rows * columns) if self.tiles is not None else 0)

    @property
    def rows(self) -> int:
        """How many feature rows there are."""
        return math.prod(self.grid)


class Fitting(Protocol):
    """A model's rule for pictures. placeholders: the ids at whose places feature rows stand."""

    @property
    def placeholders(self) -> tuple[int, ...]: ...

    def fit(self, width: int, height: int) -> Fit:
        """How a picture of this size in pixels enters the model."""

    def fit_clip(self, width: int, height: int, frames: int) -> tuple[Fit, ...]:
        """How a clip of so many frames does, in one part or several."""


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The rule of `flowengine.operators.vision.VisionEncoder`: a row per cell of `cell` pixels.

    least, most: the bounds on a picture's area, in pixels.
    """

    placeholder: int
    cell: int = 16
    least: int = 32 * 32
    most: int = 512 * 512

    @property
    def placeholders(self) -> tuple[int, ...]:
        return (self.placeholder,)

    def fit_clip(self, width: int, height: int, frames: int) -> tuple[Fit, ...]:
        """Every frame as a picture."""
        return (self.fit(width, height),) * frames

    def fit(self, width: int, height: int) -> Fit:
        """The nearest size in whole cells."""
        high, wide = scaled(height, width, cell=self.cell, least=self.least, most=self.most)
        rows, columns = high // self.cell, wide // self.cell
        return Fit((wide, high), (1, rows, columns), (self.placeholder,) * (rows * columns))


def scaled(height: int, width: int, *, cell: int, least: int, most: int) -> tuple[int, int]:
    """Height and width nearest to the given in multiples of `cell`, with an area in pixels between
    `least` and `most`: the rule of Qwen2-VL (arXiv 2409.12191). ValueError for sides beyond
    200 : 1, which its models refuse."""
    if max(height, width) > 200 * min(height, width):
        raise ValueError(f"a picture has {width} x {height} pixels; expected sides within 200 : 1")
    h, w = (max(cell, round(side / cell) * cell) for side in (height, width))
    if h * w > most:
        shrink = math.sqrt(height * width / most)
        h, w = (max(cell, math.floor(s / shrink / cell) * cell) for s in (height, width))
    elif h * w < least:
        grow = math.sqrt(least / (height * width))
        h, w = (math.ceil(side * grow / cell) * cell for side in (height, width))
    return h, w
