"""Shared memory without a name."""

from __future__ import annotations

import fcntl
import mmap
import multiprocessing
import os

import numpy as np
import pytest

from flowengine.pool import Segment

F_SEAL_GROW_AND_SHRINK = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


def add_one(segment: Segment) -> None:
    """What the other process does."""
    segment.bytes += 1


@pytest.mark.slow
def test_another_process_sees_the_same_bytes() -> None:
    """A segment passed to a new process is the same memory there, in both directions."""
    segment = Segment.create(10_000)
    segment.bytes[:] = np.arange(10_000) % 251
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["flowengine.runtime.worker"])
    process = context.Process(target=add_one, args=(segment,))
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()
    assert (segment.bytes == np.arange(10_000) % 251 + 1).all()
    segment.close()


def test_a_segment_has_no_name() -> None:
    """Nothing appears in /dev/shm while a segment is there."""
    before = set(os.listdir("/dev/shm"))
    segment = Segment.create(1 << 20)
    segment.bytes[:] = 1
    assert set(os.listdir("/dev/shm")) == before
    segment.close()


def test_a_segment_cannot_be_resized() -> None:
    """Sealed: no holder of the descriptor can cut the memory off under another's view."""
    segment = Segment.create(1 << 16)
    assert fcntl.fcntl(segment.fd, fcntl.F_GET_SEALS) == F_SEAL_GROW_AND_SHRINK
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, size)
    segment.close()


@pytest.mark.parametrize("size", [0, 1, mmap.PAGESIZE, mmap.PAGESIZE + 1])
def test_a_segment_is_zero_and_at_least_a_page(size: int) -> None:
    """Any size can be asked for; the bytes are 0 at first."""
    segment = Segment.create(size)
    assert segment.size == len(segment.bytes) == max(size, mmap.PAGESIZE)
    assert not segment.bytes.any()
    segment.close()


def test_a_view_outlives_its_segment() -> None:
    """After close the bytes stay for those who look at them."""
    segment = Segment.create(4096)
    view = segment.bytes[10:20]
    segment.close()
    view[:] = 7
    assert (view == 7).all()


def test_close_leaves_no_descriptor() -> None:
    """Closed, once or twice, a segment without views holds no descriptor, though it is kept."""
    before = len(os.listdir("/proc/self/fd"))
    segments = [Segment.create(4096) for _ in range(5)]
    for segment in segments * 2:
        segment.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_untouched_memory_costs_nothing() -> None:
    """A segment of 64 GiB has no page until it is written."""
    segment = Segment.create(2**36)
    assert os.fstat(segment.fd).st_blocks == 0
    segment.bytes[2**35] = 1
    assert os.fstat(segment.fd).st_blocks * 512 <= 2**21
    segment.close()
