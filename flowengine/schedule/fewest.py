"""The fewest packs that are found, where tokens are the only limit."""

from __future__ import annotations

import numpy as np

from flowengine.schedule import kernels
from flowengine.schedule.lengths import MOST_TOKENS, Small

WINDOW = 256
"""Samples that wait at a time in the second way of packing."""


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
