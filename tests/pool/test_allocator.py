"""Ranges of a segment: whatever is asked for and freed in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from flowengine.pool import Allocator
from flowengine.pool.allocator import ALIGNMENT, align

CAPACITY = 64 * 40 + 17


class Allocating(RuleBasedStateMachine):
    """Reserves and frees in any order, next to a plain list of what is taken."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator(CAPACITY)
        self.ranges: dict[int, int] = {}
        self.peak = 0

    @rule(target=taken, size=st.integers(0, CAPACITY + ALIGNMENT))
    def reserve(self, size: int) -> int | None:
        offset = self.allocator.reserve(size)
        if offset is None:
            assert not self._fits(align(size))
        else:
            self.ranges[offset] = align(size)
            self.peak = max(self.peak, sum(self.ranges.values()))
        return offset

    @rule(offset=consumes(taken))
    def free(self, offset: int | None) -> None:
        if offset is not None:
            self.allocator.free(offset)
            del self.ranges[offset]

    @invariant()
    def ranges_keep_apart(self) -> None:
        end = 0
        for start, size in sorted(self.ranges.items()):
            assert start >= end
            assert start % ALIGNMENT == 0
            end = start + size
        assert end <= CAPACITY

    @invariant()
    def counts_are_right(self) -> None:
        assert self.allocator.used == sum(self.ranges.values()) <= CAPACITY
        assert self.allocator.num_taken == len(self.ranges)
        assert self.allocator.peak == self.peak

    def teardown(self) -> None:
        for offset in list(self.ranges):
            self.allocator.free(offset)
        assert self.allocator.used == 0
        assert self.allocator.reserve(CAPACITY - CAPACITY % ALIGNMENT) == 0

    def _fits(self, size: int) -> bool:
        """Whether some gap between the taken ranges holds so much."""
        end = 0
        for start, taken in sorted(self.ranges.items()):
            if start - end >= size:
                return True
            end = start + taken
        return CAPACITY - end >= size


TestAllocating = Allocating.TestCase
TestAllocating.settings = settings(max_examples=30, stateful_step_count=30)


@given(sizes=st.lists(st.integers(0, 500), max_size=12), order=st.randoms(use_true_random=False))
def test_all_freed_is_one_range_again(sizes: list[int], order: object) -> None:
    """Freed in any order, the ranges merge until the whole capacity can be had at once."""
    allocator = Allocator(8192)
    taken = [offset for size in sizes if (offset := allocator.reserve(size)) is not None]
    order.shuffle(taken)  # type: ignore[attr-defined]
    for offset in taken:
        allocator.free(offset)
    assert allocator.reserve(8192) == 0


@given(size=st.integers(0, 2**40))
def test_align_rounds_up_to_the_next_multiple(size: int) -> None:
    """An aligned size is the smallest positive multiple of ALIGNMENT that holds the size."""
    aligned = align(size)
    assert aligned % ALIGNMENT == 0
    assert aligned >= max(size, ALIGNMENT)
    assert aligned - ALIGNMENT < max(size, 1)


def test_the_first_gap_that_fits_is_taken() -> None:
    """A freed range is used again before untouched memory, which would cost new pages."""
    allocator = Allocator(1024)
    first, second = allocator.reserve(128), allocator.reserve(128)
    assert (first, second) == (0, 128)
    allocator.free(0)
    assert allocator.reserve(100) == 0


def test_a_range_is_freed_once() -> None:
    """Freeing what is not taken, or not the start of a range, is an error."""
    allocator = Allocator(1024)
    allocator.reserve(256)
    with pytest.raises(KeyError):
        allocator.free(64)
    allocator.free(0)
    with pytest.raises(KeyError):
        allocator.free(0)


def test_nothing_can_be_had_of_nothing() -> None:
    """An allocator over no bytes gives no range, not even for an empty tensor."""
    assert Allocator(0).reserve(0) is None
