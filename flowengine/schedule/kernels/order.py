"""Orders of samples, the packs' final order, and the least number of packs there can be."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Small = NDArray[np.int32]


@njit(cache=True)
def longest_first(lengths: Small) -> Small:
    """The samples by falling length, equals in their own order: a counting sort."""
    longest = np.int64(0)
    for length in lengths:
        longest = max(longest, np.int64(length))
    place = np.zeros(longest + 2, np.int32)
    for length in lengths:
        place[longest - length + 1] += 1
    for rank in range(longest + 1):
        place[rank + 1] += place[rank]
    order = np.empty(len(lengths), np.int32)
    for sample, length in enumerate(lengths):
        rank = longest - length
        order[place[rank]] = sample
        place[rank] += 1
    return order


@njit(cache=True)
def group(pack_of: Small, num_packs: int) -> tuple[Integers, Integers]:
    """The samples of every pack in ascending order, and where each pack begins and the last ends.

    The packs come in the order of their first samples. None is empty.
    """
    rank = np.full(num_packs, -1, np.int32)
    offsets = np.zeros(num_packs + 1, np.int64)
    seen = 0
    for pack in pack_of:
        if rank[pack] < 0:
            rank[pack] = seen
            seen += 1
        offsets[rank[pack] + 1] += 1
    for pack in range(num_packs):
        offsets[pack + 1] += offsets[pack]
    ids = np.empty(len(pack_of), np.int64)
    for sample, pack in enumerate(pack_of):
        place = rank[pack]
        ids[offsets[place]] = sample
        offsets[place] += 1
    offsets[1:] = offsets[:-1].copy()
    offsets[0] = 0
    return ids, offsets


@njit(cache=True)
def lower_bound(order: Small, lengths: Small, max_tokens: int) -> int:
    """No packing has fewer packs: the bound L2 of Martello and Toth (1990).

    order: longest first. For a threshold t of at most half a pack: samples longer than
    max_tokens - t have a pack to themselves, the others above one half a pack each, and what the
    latter leave free must hold all samples from t to one half.
    """
    num_samples = len(order)
    halves = 0
    while halves < num_samples and 2 * np.int64(lengths[order[halves]]) > max_tokens:
        halves += 1
    large = np.int64(0)
    for rank in range(halves):
        large += lengths[order[rank]]
    alone, alone_tokens, small, best = halves, large, np.int64(0), halves
    for rank in range(halves, num_samples):
        threshold = np.int64(lengths[order[rank]])
        small += threshold
        while alone > 0 and np.int64(lengths[order[alone - 1]]) <= max_tokens - threshold:
            alone -= 1
            alone_tokens -= lengths[order[alone]]
        free = (halves - alone) * max_tokens - (large - alone_tokens)
        if small > free:
            best = max(best, halves + int(small - free + max_tokens - 1) // max_tokens)
    return best
