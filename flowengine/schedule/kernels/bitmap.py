"""A set of small integers that finds its next member in a few instructions.

One bit per integer, 64 to a word; a bit of the level above says that a word is not empty, and so on
up to a single word. words: uint64, all levels, the lowest first. starts: int64 [levels], where each
level begins. 64**levels integers, so three levels reach 262,144.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]

ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
SIX = np.uint64(6)
LOW = np.uint64(63)


@intrinsic
def _lowest_bit(typing: Any, word: Any) -> Any:  # noqa: ARG001 (numba passes it)
    """The place of the lowest set bit of a word that has one: uint64 -> uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@njit(cache=True)
def empty_set(size: int) -> tuple[Words, Integers]:
    """The empty set of integers below `size`: (words, starts)."""
    levels, total, length = 0, 0, size
    while levels == 0 or length > 1:
        length = (length + 63) // 64
        total += length
        levels += 1
    starts = np.empty(levels, np.int64)
    place, length = 0, size
    for level in range(levels):
        starts[level] = place
        length = (length + 63) // 64
        place += length
    return np.zeros(total, np.uint64), starts


@njit(cache=True)
def add(words: Words, starts: Integers, member: int) -> None:
    place = np.uint64(member)
    for start in starts:
        word = start + np.int64(place >> SIX)
        was_empty = words[word] == 0
        words[word] |= ONE << (place & LOW)
        if not was_empty:
            return
        place >>= SIX


@njit(cache=True)
def discard(words: Words, starts: Integers, member: int) -> None:
    place = np.uint64(member)
    for start in starts:
        word = start + np.int64(place >> SIX)
        words[word] &= ~(ONE << (place & LOW))
        if words[word] != 0:
            return
        place >>= SIX


@njit(cache=True)
def next_member(words: Words, starts: Integers, least: int) -> int:
    """The least member that is at least `least`; -1 if there is none."""
    place = np.uint64(least)
    ends = len(words)
    for level in range(len(starts)):
        word = starts[level] + np.int64(place >> SIX)
        end = starts[level + 1] if level + 1 < len(starts) else ends
        if word >= end:
            return -1
        found = words[word] & (ALL << (place & LOW))
        if found:
            place = (place & ~LOW) | _lowest_bit(found)  # type: ignore[call-arg]
            for lower in range(level - 1, -1, -1):
                below = words[starts[lower] + np.int64(place)]
                place = (place << SIX) | _lowest_bit(below)
            return np.int64(place)
        place = (place >> SIX) + ONE
    return -1
