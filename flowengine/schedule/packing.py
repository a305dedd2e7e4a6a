"""As few packs as can be found.

`pack` is a pure function: equal arguments give equal packs, on every machine, and the same lengths
in another order give packs of the same lengths. A result is (ids, offsets), int64: pack k holds
samples ids[offsets[k]:offsets[k + 1]] in ascending order, and the packs come in the order of their
first samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from flowengine.schedule import kernels
from flowengine.schedule.lengths import MOST_TOKENS, Integers, Small, TooLong, fitting, integers

WINDOW = 256
"""Samples that wait at a time in the second way of packing."""


def pack(
    lengths: ArrayLike, *, max_tokens: int, too_long: TooLong = "error"
) -> tuple[Integers, Integers]:
    """Packs of at most `max_tokens`, few of them.

    lengths: tokens per sample, integers [n]; a NumPy array or an Arrow column.
    too_long: what becomes of a sample of more than `max_tokens`. With "own-pack" it is a pack; with
        "dead-letter" it is in none; with "error" it raises TooLongError.

    Best fit decreasing (Johnson 1973); where that needs more packs than the bound L2 of Martello
    and Toth (1990), also a search with a look-ahead of 256 samples, and the better of the two.
    """
    sizes, kept = fitting(integers(lengths), max_tokens=max_tokens, too_long=too_long)
    ids, offsets = kernels.group(*fewest(sizes, max_tokens))
    return (ids if kept is None else kept[ids]), offsets


def least_packs(lengths: ArrayLike, *, max_tokens: int) -> int:
    """How many packs every packing needs at least: the bound L2 of Martello and Toth (1990).

    lengths: tokens per sample, integers [n], none above `max_tokens`.
    """
    sizes, _ = fitting(integers(lengths), max_tokens=max_tokens, too_long="error")
    return int(kernels.lower_bound(kernels.longest_first(sizes), sizes, max_tokens))


def fewest(sizes: Small, max_tokens: int) -> tuple[Small, int]:
    """The pack of every sample, int32 [n], and how many packs."""
    total = int(sizes.sum(dtype=np.int64))
    if total <= max_tokens:
        return np.zeros(len(sizes), np.int32), int(len(sizes) > 0)
    if max_tokens > MOST_TOKENS:
        raise ValueError(
            f"pack: max_tokens is {max_tokens} and the samples have more together; expected at "
            f"most {MOST_TOKENS}"
        )
    order = kernels.longest_first(sizes)
    pack_of, num_packs = kernels.best_fit_decreasing(order, sizes, max_tokens)
    if num_packs > kernels.lower_bound(order, sizes, max_tokens):
        most_free = (num_packs - 1) * max_tokens - total
        other, fewer = kernels.look_ahead(order, sizes, max_tokens, WINDOW, most_free)
        if fewer > 0:
            return other, fewer
    return pack_of, num_packs
