"""Packing with a bounded look-ahead: one pack at a time out of the samples that wait.

`waiting`, int64 [9, capacity], holds num samples, twice. Rows 0 to 2: numbers, lengths and ids in
the order of arrival. Rows 3 and 4: numbers and lengths by rising length, of equals the oldest last.
Numbers rise in the order of arrival. Rows 5 and 6: numbers and ids of the packs that were taken
last, each in the order of arrival; row 7: how many samples each of these packs has.

How a pack is filled. First the longest sample if it takes more than half a pack, so that long
samples do not pile up; or the oldest, once it is overdue. Then samples in the order of their
arrival while much room is left. Then the last few samples are searched for: the oldest sample that
together with at most two others fills the pack but for a trifle, else the best three there are.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Small = NDArray[np.int32]

SEARCH_SHARE = 0.7
"""The search begins at the latest when this part of a pack is still free."""

SEARCH_SAMPLES = 3
"""The search begins when no more than so many average samples still fit."""

TRIFLE = 512
"""A pack is full when less than max_tokens / TRIFLE tokens are free."""

NUMBER, LENGTH, ID, RANKED, RISING, NUMBERS, NAMES, COUNTS, FRESH = range(9)
ROWS = 9
"""What the rows of `waiting` hold."""

PATIENCE = 3
"""The oldest sample is overdue when so many windows have arrived after it."""


@njit(cache=True)
def wait(waiting: Integers, num: int, number: int, length: int, name: int) -> None:
    """One more sample waits; name: its id."""
    waiting[NUMBER, num] = number
    waiting[LENGTH, num] = length
    waiting[ID, num] = name
    place = num
    while place > 0 and waiting[RISING, place - 1] >= length:
        waiting[RANKED, place] = waiting[RANKED, place - 1]
        waiting[RISING, place] = waiting[RISING, place - 1]
        place -= 1
    waiting[RANKED, place] = number
    waiting[RISING, place] = length


@njit(cache=True)
def take_full(
    waiting: Integers,
    num: int,
    num_fresh: int,
    newest: int,
    window: int,
    max_tokens: int,
    at_once: bool,
) -> tuple[int, int, int]:
    """Adds fresh samples, the last of which is numbered `newest`, and takes packs as long as there
    are a window of samples and a pack of tokens: how many packs, and the samples and tokens that
    still wait.

    The fresh samples' ids and lengths are in rows 6 and 8 of `waiting`. at_once: takes all.
    """
    for place in range(num_fresh):
        number = newest - num_fresh + 1 + place
        wait(waiting, num, number, waiting[FRESH, place], waiting[NAMES, place])
        num += 1
    tokens = np.int64(0)
    for place in range(num):
        tokens += waiting[LENGTH, place]
    packs, taken = 0, 0
    while num > 0 and (at_once or (num >= window and tokens >= max_tokens)):
        count, filled = take_pack(waiting, num, taken, newest, window, max_tokens)
        waiting[COUNTS, packs] = count
        packs += 1
        taken += count
        num -= count
        tokens -= filled
    return packs, num, int(tokens)


@njit(cache=True)
def take_pack(
    waiting: Integers, num: int, taken: int, newest: int, window: int, max_tokens: int
) -> tuple[int, int]:
    """Takes one pack out of the samples that wait: how many samples, and their tokens.

    taken: how many samples the packs have that were taken before and are to be kept. newest: the
    number of the sample that arrived last.
    """
    room, count = max_tokens, 0
    place = 0
    tokens = np.int64(0)
    for each in range(num):
        tokens += waiting[LENGTH, each]
    longest = waiting[RISING, num - 1]
    if newest - waiting[NUMBER, 0] < PATIENCE * window and 2 * longest > max_tokens:
        place = _arrival(waiting, num, waiting[RANKED, num - 1])
    search_room = min(SEARCH_SHARE * max_tokens, SEARCH_SAMPLES * tokens / num)
    room -= _take(waiting, num, place, taken, count)
    count += 1
    place = 0
    while place < num - count and room > search_room:
        if waiting[LENGTH, place] > room:
            place += 1
            continue
        room -= _take(waiting, num - count, place, taken, count)
        count += 1
    while count < num and waiting[RISING, 0] <= room:
        for number in _search(waiting, num - count, room, max_tokens // TRIFLE):
            if number >= 0:
                place = _arrival(waiting, num - count, number)
                room -= _take(waiting, num - count, place, taken, count)
                count += 1
    return count, max_tokens - room


@njit(cache=True)
def look_ahead(
    order: Small, lengths: Small, max_tokens: int, window: int, most_free: int
) -> tuple[Small, int]:
    """Packs a whole data set with a window: the pack of every sample, and how many packs.

    Gives up, with -1 packs, once the packs have more than `most_free` tokens left.

    The samples arrive spread: the i-th is order[i * stride % n], with a stride near the golden
    section of n. In an order by length, every window then holds about the same mixture.
    """
    num_samples = len(order)
    stride = _coprime_near(num_samples, 0.6180339887498949)
    pack_of = np.empty(num_samples, np.int32)
    waiting = np.empty((ROWS, min(num_samples, window)), np.int64)
    num, num_packs, arrived, position, tokens = 0, 0, 0, 0, 0
    while arrived < num_samples or num > 0:
        while arrived < num_samples and (num < window or tokens < max_tokens):
            if num == waiting.shape[1]:
                waiting = np.concatenate((waiting, np.empty_like(waiting)), axis=1)
            wait(waiting, num, arrived, lengths[order[position]], arrived)
            tokens += lengths[order[position]]
            position = (position + stride) % num_samples
            num += 1
            arrived += 1
        count, filled = take_pack(waiting, num, 0, arrived - 1, window, max_tokens)
        for number in waiting[NUMBERS, :count]:
            pack_of[order[(number * stride) % num_samples]] = num_packs
        tokens -= filled
        most_free -= max_tokens - filled
        if most_free < 0:
            return pack_of, -1
        num -= count
        num_packs += 1
    return pack_of, num_packs


@njit(cache=True)
def _coprime_near(number: int, share: float) -> int:
    stride = max(1, int(number * share))
    while True:
        rest, divisor = number, stride
        while divisor:
            rest, divisor = divisor, rest % divisor
        if rest == 1:
            return stride
        stride += 1


@njit(cache=True)
def _first_from(rising: Integers, num: int, least: int) -> int:
    """The place of the first of num rising values that is at least `least`; num if none is."""
    low, high = 0, num
    while low < high:
        middle = (low + high) >> 1
        if rising[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def _arrival(waiting: Integers, num: int, number: int) -> int:
    """The place of a sample in the order of arrival."""
    return int(_first_from(waiting[NUMBER], num, number))


@njit(cache=True)
def _rank(waiting: Integers, num: int, number: int, length: int) -> int:
    """The place of a sample in the order of length."""
    place = int(_first_from(waiting[RISING], num, length))
    while waiting[RANKED, place] != number:
        place += 1
    return place


@njit(cache=True)
def _take(waiting: Integers, num: int, place: int, taken: int, count: int) -> int:
    """Moves the sample at this place of the order of arrival to the pack that has `count` samples
    behind the `taken` of others; its length."""
    number, length, name = waiting[NUMBER, place], waiting[LENGTH, place], waiting[ID, place]
    rank = _rank(waiting, num, number, length)
    for later in range(place + 1, num):
        waiting[NUMBER, later - 1] = waiting[NUMBER, later]
        waiting[LENGTH, later - 1] = waiting[LENGTH, later]
        waiting[ID, later - 1] = waiting[ID, later]
    for longer in range(rank + 1, num):
        waiting[RANKED, longer - 1] = waiting[RANKED, longer]
        waiting[RISING, longer - 1] = waiting[RISING, longer]
    slot = taken + count
    while slot > taken and waiting[NUMBERS, slot - 1] > number:
        waiting[NUMBERS, slot] = waiting[NUMBERS, slot - 1]
        waiting[NAMES, slot] = waiting[NAMES, slot - 1]
        slot -= 1
    waiting[NUMBERS, slot] = number
    waiting[NAMES, slot] = name
    return int(length)


@njit(cache=True)
def _search(waiting: Integers, num: int, room: int, trifle: int) -> tuple[int, int, int]:
    """The numbers of at most three samples (-1: none) that fill this room best."""
    best, chosen = -1, (-1, -1, -1)
    rising = waiting[RISING]
    for place in range(num):
        number, length = waiting[NUMBER, place], waiting[LENGTH, place]
        if length > room:
            continue
        rank = _rank(waiting, num, number, length)
        filled, second, third = _best_pair(rising, num, rank, room - length)
        if filled + length > best:
            best = filled + length
            chosen = (
                number,
                waiting[RANKED, second] if second >= 0 else -1,
                waiting[RANKED, third] if third >= 0 else -1,
            )
            if room - best <= trifle:
                break
    return chosen


@njit(cache=True)
def _best_pair(lengths: Integers, num: int, left_out: int, room: int) -> tuple[int, int, int]:
    """At most two of num rising lengths, one left out, that fill this room best: their sum and
    their places (-1: none)."""
    high = _first_from(lengths, num, room + 1) - 1
    if high == left_out:
        high -= 1
    if high < 0:
        return 0, -1, -1
    best, first, second = lengths[high], high, -1
    low = 0
    while low < high and best < room:
        if low == left_out:
            low += 1
        elif high == left_out or lengths[low] + lengths[high] > room:
            high -= 1
        else:
            if lengths[low] + lengths[high] > best:
                best, first, second = lengths[low] + lengths[high], low, high
            low += 1
    return best, first, second
