"""Lengths of samples as vision-language training sees them: seeded, heavy-tailed, reproducible.

Sample i of a workload depends on (workload, seed, i) alone, so a short draw is the beginning of a
long one. The only random source is SplitMix64 (Steele et al. 2014) as a counter:

    uniform(i, j) = (mix(key + (32 i + j + 1) * GOLDEN) >> 11) * 2**-53
    key           = mix(seed * GOLDEN + fnv1a(workload))

and normal(i, j) is Box and Muller's of uniform(i, j) and uniform(i, j + 1). Integers wrap at 2**64.

    text    lognormal, median 400
    llava   text with 576 tokens per tile: one tile, or a base and two to four of a grid
    doc     text with an infographic, a page or a chart at native resolution, 28 x 28 pixels a token
    video   text with 196 tokens per frame, 4 to 64 frames
    mix     40 % llava, 28 % doc, 20 % text, 12 % video
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

GOLDEN = 0x9E3779B97F4A7C15
WORD = 2**64
CHUNK = 2**16
"""Samples drawn at a time; no result depends on it."""

MOST_IMAGE_TOKENS = 16384
"""Qwen2-VL's ceiling for one image."""


class Draw:
    """Random numbers of samples start to start + CHUNK - 1, by column."""

    def __init__(self, workload: str, *, seed: int, start: int) -> None:
        name = 0xCBF29CE484222325
        for byte in workload.encode():
            name = ((name ^ byte) * 0x100000001B3) % WORD
        with np.errstate(over="ignore"):
            self._key = _mix(np.array([(seed * GOLDEN + name) % WORD], np.uint64))
        self._samples = np.arange(start, start + CHUNK, dtype=np.uint64)

    def uniform(self, column: int) -> Floats:
        with np.errstate(over="ignore"):
            place = self._samples * np.uint64(32) + np.uint64(column + 1)
            word = _mix(self._key + place * np.uint64(GOLDEN))
        return (word >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, column: int) -> Floats:
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(column)))
        return np.asarray(radius * np.cos(2.0 * np.pi * self.uniform(column + 1)))

    def lognormal(self, column: int, *, median: float, sigma: float) -> Integers:
        values = median * np.exp(sigma * self.normal(column))
        return np.floor(values + 0.5).astype(np.int64)


def draw_lengths(
    workload: str, num_samples: int, *, max_tokens: int, seed: int
) -> NDArray[np.int32]:
    """The first samples of at most `max_tokens`: text and visual tokens together, int32 [n]."""
    parts: list[Integers] = []
    found, start = 0, 0
    while found < num_samples:
        lengths = KINDS[workload](Draw(workload, seed=seed, start=start))
        parts.append(lengths[lengths <= max_tokens])
        found += len(parts[-1])
        start += CHUNK
    return np.concatenate(parts)[:num_samples].astype(np.int32)


def checksum(lengths: NDArray[np.int32]) -> str:
    """CRC-32 of the lengths as little-endian int32."""
    return f"{zlib.crc32(lengths.astype('<i4').tobytes()):08x}"


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(word ^ (word >> np.uint64(31)))


def _text(draw: Draw) -> Integers:
    words: Integers = np.clip(draw.lognormal(0, median=400.0, sigma=1.1), 8, 65536)
    return words


def _llava(draw: Draw) -> Integers:
    words: Integers = np.clip(draw.lognormal(0, median=150.0, sigma=0.8), 8, 8192)
    share = draw.uniform(2)
    tiles: Integers = np.select([share < 0.55, share < 0.7075, share < 0.775], [1, 3, 4], 5)
    return words + 576 * tiles


def _doc(draw: Draw) -> Integers:
    words = np.clip(draw.lognormal(0, median=120.0, sigma=0.9), 8, 8192)
    share, wide, tall = draw.uniform(2), draw.normal(3), draw.normal(5)
    kinds = [share < 0.35, share < 0.80]  # infographic, page; else a chart

    def choose(infographic: Floats, page: Floats, chart: Floats) -> Floats:
        return np.select(kinds, [infographic, page], chart)

    def cells(pixels: Floats) -> Integers:
        return np.maximum(1, np.floor(pixels / 28.0 + 0.5)).astype(np.int64)

    width = choose(
        1000.0 * np.exp(0.35 * wide), 1650.0 * np.exp(0.25 * wide), 700.0 * np.exp(0.35 * wide)
    )
    aspect = choose(2.0 * np.exp(0.50 * tall), 1.3 * np.exp(0.08 * tall), 0.7 * np.exp(0.20 * tall))
    image: Integers = np.clip(cells(width) * cells(width * aspect), 4, MOST_IMAGE_TOKENS)
    return words + image


def _video(draw: Draw) -> Integers:
    words = np.clip(draw.lognormal(0, median=180.0, sigma=0.7), 8, 8192)
    return words + 196 * np.clip(draw.lognormal(2, median=20.0, sigma=0.7), 4, 64)


def _mix_of_all(draw: Draw) -> Integers:
    share = draw.uniform(31)
    kinds = [share < 0.40, share < 0.68, share < 0.88]
    return np.select(kinds, [_llava(draw), _doc(draw), _text(draw)], _video(draw))


KINDS: dict[str, Callable[[Draw], Integers]] = {
    "text": _text,
    "llava": _llava,
    "doc": _doc,
    "video": _video,
    "mix": _mix_of_all,
}
