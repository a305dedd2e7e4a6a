"""Packing with a bounded look-ahead where a pack has several limits.

`waiting`, int64 [2 + limits, capacity], holds num samples in the order of arrival: numbers, then
the sizes that `limits` [limits] bound, tokens first. The last row is for what is taken: numbers,
one pack behind the other; `counts` [capacity] tells how many samples each has.

A pack is filled as with one limit, but the last samples are found by trying all pairs.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from flowengine.schedule.kernels.window import PATIENCE, SEARCH_SAMPLES, SEARCH_SHARE, TRIFLE

Integers = NDArray[np.int64]

NUMBER, SIZES = 0, 1


@njit(cache=True)
def take_limited(
    waiting: Integers,
    counts: Integers,
    num: int,
    newest: int,
    window: int,
    limits: Integers,
    at_once: bool,
) -> tuple[int, int]:
    """Takes packs as long as there are a window of samples and enough of them to reach a limit:
    how many packs, and the samples that still wait.

    newest: the number of the sample that arrived last. at_once: takes all.
    """
    packs, taken = 0, 0
    while num > 0 and (at_once or (num >= window and _reach_a_limit(waiting, num, limits))):
        count = _take_pack(waiting, num, taken, newest, window, limits)
        counts[packs] = count
        packs += 1
        taken += count
        num -= count
    return packs, num


@njit(cache=True)
def _reach_a_limit(waiting: Integers, num: int, limits: Integers) -> bool:
    for column in range(len(limits)):
        total = np.int64(0)
        for place in range(num):
            total += waiting[SIZES + column, place]
        if total >= limits[column]:
            return True
    return False


@njit(cache=True)
def _take_pack(
    waiting: Integers, num: int, taken: int, newest: int, window: int, limits: Integers
) -> int:
    room = limits.copy()
    tokens, longest = np.int64(0), 0
    for place in range(num):
        tokens += waiting[SIZES, place]
        if waiting[SIZES, place] > waiting[SIZES, longest]:
            longest = place
    search_room = min(SEARCH_SHARE * limits[0], SEARCH_SAMPLES * tokens / num)
    place = 0
    if newest - waiting[NUMBER, 0] < PATIENCE * window and 2 * waiting[SIZES, longest] > limits[0]:
        place = longest
    _take(waiting, num, place, taken, room)
    count, place = 1, 0
    while place < num - count and room[0] > search_room:
        if _fits(waiting, place, -1, room):
            _take(waiting, num - count, place, taken + count, room)
            count += 1
        else:
            place += 1
    while True:
        first, second = _best_pair(waiting, num - count, room, limits[0] // TRIFLE)
        if first < 0:
            break
        if second >= 0:  # it is behind the first
            _take(waiting, num - count, second, taken + count, room)
            count += 1
        _take(waiting, num - count, first, taken + count, room)
        count += 1
    waiting[-1, taken : taken + count].sort()
    return count


@njit(cache=True)
def _take(waiting: Integers, num: int, place: int, slot: int, room: Integers) -> None:
    """Moves the sample at this place to this slot of the last row, and takes its room."""
    for column in range(len(room)):
        room[column] -= waiting[SIZES + column, place]
    waiting[-1, slot] = waiting[NUMBER, place]
    for row in range(SIZES + len(room)):
        for later in range(place + 1, num):
            waiting[row, later - 1] = waiting[row, later]


@njit(cache=True)
def _fits(waiting: Integers, place: int, other: int, room: Integers) -> bool:
    """Whether there is room for the sample at this place, together with another (-1: none)."""
    for column in range(len(room)):
        size = waiting[SIZES + column, place]
        if other >= 0:
            size += waiting[SIZES + column, other]
        if size > room[column]:
            return False
    return True


@njit(cache=True)
def _best_pair(waiting: Integers, num: int, room: Integers, trifle: int) -> tuple[int, int]:
    """The places of at most two samples (-1: none) that leave least room for tokens, the oldest of
    equals."""
    best, first, second = -1, -1, -1
    for place in range(num):
        if not _fits(waiting, place, -1, room):
            continue
        if waiting[SIZES, place] > best:
            best, first, second = waiting[SIZES, place], place, -1
        for other in range(place + 1, num):
            filled = waiting[SIZES, place] + waiting[SIZES, other]
            if filled > best and _fits(waiting, place, other, room):
                best, first, second = filled, place, other
        if room[0] - best <= trifle:
            break
    return first, second
