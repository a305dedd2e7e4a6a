"""Hands out ranges of a segment; run by the segment's owner alone, so it needs no lock.

First fit over free ranges in address order; neighbours are merged when a range is freed, so an
allocator with nothing handed out is one free range again. Ranges start at multiples of ALIGNMENT.
"""

from __future__ import annotations

from bisect import bisect_left

ALIGNMENT = 64
"""Bytes; a cache line, and enough for every torch dtype."""


def align(size: int) -> int:
    """`size` rounded up to a multiple of ALIGNMENT, and at least that."""
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)


class Allocator:
    """Ranges of [0, capacity)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self._starts = [0] if capacity else []
        self._sizes = {0: capacity} if capacity else {}
        self._taken: dict[int, int] = {}

    def reserve(self, size: int) -> int | None:
        """The offset of a free range of at least `size` bytes, now taken; None if there is none."""
        size = align(size)
        for index, start in enumerate(self._starts):
            room = self._sizes[start]
            if room >= size:
                self._take(index, start, size, room)
                return start
        return None

    def _take(self, index: int, start: int, size: int, room: int) -> None:
        del self._starts[index], self._sizes[start]
        if room > size:
            self._starts.insert(index, start + size)
            self._sizes[start + size] = room - size
        self._taken[start] = size
        self.used += size
        self.peak = max(self.peak, self.used)

    def free(self, offset: int) -> None:
        """Gives a range back; KeyError if `offset` is not the start of a taken one."""
        size = self._taken.pop(offset)
        self.used -= size
        index = bisect_left(self._starts, offset)
        if index < len(self._starts) and self._starts[index] == offset + size:
            size += self._sizes.pop(self._starts.pop(index))
        if index > 0:
            before = self._starts[index - 1]
            if before + self._sizes[before] == offset:
                self._sizes[before] += size
                return
        self._starts.insert(index, offset)
        self._sizes[offset] = size

    @property
    def num_taken(self) -> int:
        """How many ranges are handed out."""
        return len(self._taken)
