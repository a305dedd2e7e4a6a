"""Packing with a bounded look-ahead: one pack at a time out of the samples that wait.

`waiting`, int64 [5, capacity], holds num samples, twice. Rows 0 and 1: numbers and lengths in the
order of arrival. Rows 2 and 3: numbers and lengths by rising length, of equals the oldest last.
Numbers rise in the order of arrival. Row 4: the numbers of the pack that was taken last.

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

PATIENCE = 3
"""The oldest sample is overdue when so many windows have arrived after it."""


@njit(cache=True)
def wait(waiting: Integers, num: int, number: int, length: int) -> None:
    """One more sample waits."""
    waiting[0, num] = number
    waiting[1, num] = length
    place = num
    while place > 0 and waiting[3, place - 1] >= length:
        waiting[2, place] = waiting[2, place - 1]
        waiting[3, place] = waiting[3, place - 1]
        place -= 1
    waiting[2, place] = number
    waiting[3, place] = length


@njit(cache=True)
def take_next(
    waiting: Integers,
    num: int,
    fresh: Integers,
    newest: int,
    window: int,
    max_tokens: int,
) -> tuple[int, int]:
    """Adds the fresh ones of num samples, the last numbered `newest`, and takes one pack: how many
    samples it has, and the tokens that still wait."""
    for place, length in enumerate(fresh):
        before = len(fresh) - place
        wait(waiting, num - before, newest - before + 1, length)
    tokens = waiting[1, :num].sum()
    count, filled = take_pack(waiting, num, newest, window, max_tokens)
    return count, tokens - filled


@njit(cache=True)
def take_pack(
    waiting: Integers, num: int, newest: int, window: int, max_tokens: int
) -> tuple[int, int]:
    """Takes one pack out of the samples that wait: how many samples, and their tokens.

    newest: the number of the sample that arrived last.
    """
    taken = waiting[4]
    room, count = max_tokens, 0
    place = 0
    if newest - waiting[0, 0] < PATIENCE * window and 2 * waiting[3, num - 1] > max_tokens:
        place = _arrival(waiting, num, waiting[2, num - 1])
    tokens = waiting[1, :num].sum()
    search_room = min(SEARCH_SHARE * max_tokens, SEARCH_SAMPLES * tokens / num)
    room -= waiting[1, place]
    taken[count] = _take(waiting, num, place)
    count += 1
    place = 0
    while place < num - count and room > search_room:
        if waiting[1, place] > room:
            place += 1
            continue
        room -= waiting[1, place]
        taken[count] = _take(waiting, num - count, place)
        count += 1
    while count < num and waiting[3, 0] <= room:
        for number in _search(waiting, num - count, room, max_tokens // TRIFLE):
            if number >= 0:
                place = _arrival(waiting, num - count, number)
                room -= waiting[1, place]
                taken[count] = _take(waiting, num - count, place)
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
    waiting = np.empty((5, min(num_samples, window)), np.int64)
    num, num_packs, arrived, position, tokens = 0, 0, 0, 0, 0
    while arrived < num_samples or num > 0:
        while arrived < num_samples and (num < window or tokens < max_tokens):
            if num == waiting.shape[1]:
                waiting = np.concatenate((waiting, np.empty_like(waiting)), axis=1)
            wait(waiting, num, arrived, lengths[order[position]])
            tokens += lengths[order[position]]
            position = (position + stride) % num_samples
            num += 1
            arrived += 1
        count, filled = take_pack(waiting, num, arrived - 1, window, max_tokens)
        for number in waiting[4, :count]:
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
def _arrival(waiting: Integers, num: int, number: int) -> int:
    return int(np.searchsorted(waiting[0, :num], number))


@njit(cache=True)
def _rank(waiting: Integers, num: int, number: int, length: int) -> int:
    place = int(np.searchsorted(waiting[3, :num], length))
    while waiting[2, place] != number:
        place += 1
    return place


@njit(cache=True)
def _take(waiting: Integers, num: int, place: int) -> int:
    """Removes the sample at this place of the order of arrival; its number."""
    number = waiting[0, place]
    rank = _rank(waiting, num, number, waiting[1, place])
    for later in range(place + 1, num):
        waiting[0, later - 1] = waiting[0, later]
        waiting[1, later - 1] = waiting[1, later]
    for longer in range(rank + 1, num):
        waiting[2, longer - 1] = waiting[2, longer]
        waiting[3, longer - 1] = waiting[3, longer]
    return int(number)


@njit(cache=True)
def _search(waiting: Integers, num: int, room: int, trifle: int) -> tuple[int, int, int]:
    """The numbers of at most three samples (-1: none) that fill this room best."""
    best, chosen = -1, (-1, -1, -1)
    for place in range(num):
        number, length = waiting[0, place], waiting[1, place]
        if length > room:
            continue
        rank = _rank(waiting, num, number, length)
        filled, second, third = _best_pair(waiting[3, :num], rank, room - length)
        if filled + length > best:
            best = filled + length
            chosen = (
                number,
                waiting[2, second] if second >= 0 else -1,
                waiting[2, third] if third >= 0 else -1,
            )
            if room - best <= trifle:
                break
    return chosen


@njit(cache=True)
def _best_pair(lengths: Integers, left_out: int, room: int) -> tuple[int, int, int]:
    """At most two of these rising lengths, one left out, that fill this room best: their sum and
    their places (-1: none)."""
    high = int(np.searchsorted(lengths, room, side="right")) - 1
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
