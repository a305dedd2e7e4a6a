"""Best fit: every sample to the fullest pack with room for it.

The packs with equally much room form a list, first in, first out of which is the last that joined,
and a bitmap finds the next list that is not empty.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from flowengine.schedule.kernels.bitmap import add, discard, empty_set, next_member

Integers = NDArray[np.int64]
Small = NDArray[np.int32]


@njit(cache=True)
def best_fit_decreasing(order: Small, lengths: Small, max_tokens: int) -> tuple[Small, int]:
    """Every sample, in this order, to the fullest pack with room; and how many packs there are.

    Tokens are the only limit. 8 bytes per sample and 4 per token of a pack.
    """
    pack_of = np.empty(len(order), np.int32)
    following = np.empty(len(order), np.int32)
    first = np.full(max_tokens + 1, -1, np.int32)
    words, starts = empty_set(max_tokens + 1)
    num_packs = 0
    for sample in order:
        length = lengths[sample]
        room = next_member(words, starts, length)
        if room < 0:
            pack, room = num_packs, max_tokens
            num_packs += 1
        else:
            pack = first[room]
            first[room] = following[pack]
            if first[room] < 0:
                discard(words, starts, room)
        pack_of[sample] = pack
        left = room - length
        if first[left] < 0:
            add(words, starts, left)
        following[pack] = first[left]
        first[left] = pack
    return pack_of, num_packs


@njit(cache=True)
def best_fit(order: Small, sizes: Integers, limits: Integers) -> tuple[Small, int]:
    """The same under several limits: the fullest pack by tokens that has room for all sizes."""
    num_samples, num_sizes = sizes.shape
    pack_of = np.empty(num_samples, np.int32)
    room = np.empty((num_samples, num_sizes), np.int64)
    first = np.full(limits[0] + 1, -1, np.int32)
    following = np.full(num_samples, -1, np.int32)
    words, starts = empty_set(limits[0] + 1)
    num_packs = 0
    for sample in order:
        pack = _take_fullest(first, following, words, starts, room, sizes[sample])
        if pack < 0:
            pack = num_packs
            num_packs += 1
            room[pack] = limits
        room[pack] -= sizes[sample]
        pack_of[sample] = pack
        left = room[pack, 0]
        if first[left] < 0:
            add(words, starts, left)
        following[pack] = first[left]
        first[left] = pack
    return pack_of, num_packs


@njit(cache=True)
def has_room(room: Integers, size: Integers) -> bool:
    for column in range(len(room)):  # noqa: SIM110 (all() would make a generator, or an array)
        if room[column] < size[column]:
            return False
    return True


@njit(cache=True)
def _take_fullest(
    first: Small,
    following: Small,
    words: NDArray[np.uint64],
    starts: Integers,
    room: Integers,
    size: Integers,
) -> int:
    """The fullest pack with room for this size, taken off its list; -1 if there is none."""
    left = next_member(words, starts, size[0])
    while left >= 0:
        before, pack = -1, first[left]
        while pack >= 0 and not has_room(room[pack], size):
            before, pack = pack, following[pack]
        if pack >= 0:
            if before >= 0:
                following[before] = following[pack]
            else:
                first[left] = following[pack]
            if first[left] < 0:
                discard(words, starts, left)
            return int(pack)
        left = next_member(words, starts, left + 1)
    return -1
