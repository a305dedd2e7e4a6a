"""What workers say of themselves in shared memory."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from flowengine.pool import Segment
from flowengine.runtime.board import Board, Notes

NOTES = Notes(
    state="blocked",
    since_s=4.0,
    waits_for="room in the pool",
    busy_s=1.5,
    blocked_s=0.25,
    starved_s=1e9,
    used_bytes=2**40,
    peak_bytes=2**63,
    num_in_hand=3,
    in_hand=(0, -7, 2**62),
    levels=((3, 2**40), (0, 0)),
    disk_bytes=5,
    peak_disk_bytes=2**41,
)


def make_board(num_workers: int) -> Board:
    return Board(Segment.create(Board.size_bytes(num_workers)))


def test_notes_come_back_as_they_were() -> None:
    """What a worker wrote is what is read, held-out samples and large numbers included."""
    board = make_board(1)
    board.write(0, NOTES)
    assert board.read(0) == NOTES


def test_a_worker_that_has_not_written_is_starting() -> None:
    """An empty slot is one of a worker that starts, with nothing in hand."""
    notes = make_board(3).read(2)
    assert (notes.state, notes.in_hand, notes.waits_for, notes.busy_s) == ("starting", (), "", 0)


@pytest.mark.parametrize("num_workers", [1, 2, 7])
def test_slots_keep_apart(num_workers: int) -> None:
    """Every worker's notes stay its own, also the last one's, at their longest."""
    board = make_board(num_workers)
    every = [
        replace(NOTES, used_bytes=i, waits_for="x" * 80, num_in_hand=16, in_hand=(i,) * 16)
        for i in range(num_workers)
    ]
    for index, notes in enumerate(every):
        board.write(index, notes)
    assert [board.read(index) for index in range(num_workers)] == every


def test_later_notes_replace_earlier_ones() -> None:
    """A shorter text or fewer samples leave nothing of the longer ones before."""
    board = make_board(1)
    board.write(0, NOTES)
    after = replace(NOTES, state="starved", waits_for="rows", num_in_hand=0, in_hand=())
    board.write(0, after)
    assert board.read(0) == after


def test_what_is_too_long_is_cut() -> None:
    """Of many samples the first 256 are named and all are counted; texts end after 80 letters, and
    other letters than ASCII become question marks."""
    board = make_board(2)
    many = ((2**32 - 1, 2**63),) * 99
    board.write(0, replace(NOTES, waits_for="\N{SNOWMAN}" + "y" * 200, levels=many))
    assert board.read(0).levels == many[:32]
    board.take_in_hand(0, tuple(range(300)), now_s=5.0)
    notes = board.read(0)
    assert notes.waits_for == "?" + "y" * 79
    assert (notes.in_hand, notes.num_in_hand) == (tuple(range(256)), 300)
    board.take_in_hand(0, tuple(range(10**5)), now_s=5.0)
    assert board.read(0).num_in_hand == 2**16 - 1
    assert board.read(1).state == "starting"


def test_taking_samples_in_hand_is_being_busy() -> None:
    """A worker that takes samples in hand is busy from then on; the rest stays."""
    board = make_board(1)
    board.write(0, NOTES)
    board.take_in_hand(0, (4, 5), now_s=6.5)
    found = board.read(0)
    assert found == replace(NOTES, state="busy", since_s=6.5, num_in_hand=2, in_hand=(4, 5))


def test_waking_up_is_being_busy() -> None:
    """A worker that has messages to see to is busy, whatever is in its hands: no stall."""
    board = make_board(1)
    board.write(0, NOTES)
    board.wake(0, now_s=6.5)
    assert board.read(0) == replace(NOTES, state="busy", since_s=6.5)


def test_a_board_does_not_hold_its_memory() -> None:
    """Once its segment is closed a board, though kept, holds no memory."""
    segment = Segment.create(Board.size_bytes(1))
    board = Board(segment)
    board.write(0, NOTES)
    segment.close()
    gc.collect()
    assert len(segment.bytes) == 0
    assert board is not None
