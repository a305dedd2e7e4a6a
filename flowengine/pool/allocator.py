"""Hands out ranges of a segment; run by the segment's owner alone, so it needs no lock.

Rules.
- Free ranges are kept by size class, eight classes to a power of two. A range is taken from the
  smallest class that surely fits, and within a class the one freed last goes first: its bytes are
  still in the processor's caches, and untouched memory stays untouched.
- What is left of a range stays free; a freed range merges with its free neighbours at once. So an
  allocator with nothing handed out is one free range again, whatever came before.
- `reserve` says None only if no free range fits.

Both take constant time, but for ranges of the request's own class: PROBES of them are looked at
before a larger one is split, and all of them before None is said. The classes and their bit map are
those of TLSF (Masmano, Ripoll, Crespo, Real, 2004: "TLSF: a new dynamic memory allocator for
real-time systems").
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

ALIGNMENT = 64
"""Bytes; a cache line, and enough for every torch dtype."""

PROBES = 4

_SPLIT_BITS = 3


def align(size: int, alignment: int = ALIGNMENT) -> int:
    """`size` rounded up to a multiple of the alignment, and at least that."""
    return max(alignment, -(-size // alignment) * alignment)


@lru_cache(maxsize=4096)
def size_class(size: int) -> int:
    """The class of a range: larger ranges have the same class or a higher one, classes of at least
    16 ALIGNMENT are within 1/8 of each other."""
    units = size // ALIGNMENT
    shift = units.bit_length() - _SPLIT_BITS - 1
    if shift <= 0:
        return units
    return (shift << _SPLIT_BITS) + (units >> shift)


class Allocator:
    """Ranges of [0, capacity), each at a multiple of `alignment` bytes."""

    def __init__(self, capacity: int, alignment: int = ALIGNMENT) -> None:
        self.capacity = capacity
        self.used = 0
        self.peak = 0
        self._alignment = alignment
        self._sizes: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._classes: list[dict[int, None]] = [{} for _ in range(size_class(capacity) + 1)]
        self._filled = 0
        self._taken: dict[int, int] = {}
        if capacity:
            self._add(0, capacity)

    def reserve(self, size: int) -> int | None:
        """The offset of a free range of at least `size` bytes, now taken; None if there is none."""
        size = align(size, self._alignment)
        start = self._find(size)
        if start is None:
            return None
        room = self._remove(start)
        if room > size:
            self._add(start + size, room - size)
        self._taken[start] = size
        self.used += size
        if self.used > self.peak:
            self.peak = self.used
        return start

    def free(self, offset: int) -> None:
        """Gives a range back; KeyError if `offset` is not the start of a taken one."""
        size = self._taken.pop(offset)
        self.used -= size
        if offset + size in self._sizes:
            size += self._remove(offset + size)
        before = self._starts.get(offset)
        if before is not None:
            size += self._remove(before)
            offset = before
        self._add(offset, size)

    @property
    def num_taken(self) -> int:
        """How many ranges are handed out."""
        return len(self._taken)

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free range."""
        highest = self._classes[self._filled.bit_length() - 1] if self._filled else {}
        return max((self._sizes[start] for start in highest), default=0)

    def _find(self, size: int) -> int | None:
        wanted = size_class(size)
        if wanted >= len(self._classes):
            return None
        own = self._classes[wanted]
        for start in islice(reversed(own), PROBES):
            if self._sizes[start] >= size:
                return start
        higher = self._filled >> (wanted + 1)
        if higher:
            lowest = wanted + (higher & -higher).bit_length()
            return next(reversed(self._classes[lowest]))
        return next((start for start in own if self._sizes[start] >= size), None)

    def _add(self, start: int, size: int) -> None:
        index = size_class(size)
        self._sizes[start] = size
        self._starts[start + size] = start
        self._classes[index][start] = None
        self._filled |= 1 << index

    def _remove(self, start: int) -> int:
        size = self._sizes.pop(start)
        del self._starts[start + size]
        index = size_class(size)
        same = self._classes[index]
        del same[start]
        if not same:
            self._filled ^= 1 << index
        return size
