"""Two tiers of one worker's memory: host memory, and a file without a name below it.

Rules.
- A span has the same offset in both tiers, so its address holds for life; what changes is which of
  the two has its bytes. A range of host memory whose bytes are on disk, or that is free, is a hole
  in the segment: it has no pages.
- Only the owner moves bytes, and only while it has the exclusive lock on the span's range of the
  host segment. Whoever looks at a span holds a shared lock there until it has let go of what it
  looked at. The locks are the kernel's (POSIX record locks): nobody waits for a lock but a reader
  whose span is just being moved, and a process that dies holds none.
- What is held stays where it is. What cannot be spilled fills the tier, and so pushes back.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from flowengine.pool.segment import Segment

PAGE = mmap.PAGESIZE
"""Bytes; spans of a worker with two tiers start at multiples of it."""


class Tiers:
    """One worker's host segment, and its disk segment of the same size."""

    def __init__(self, host: Segment, disk: Segment) -> None:
        self.host = host
        self.disk = disk

    def hold(self, start: int, size: int) -> None:
        """Keeps the span where it is until `let_go`; any number of times at once."""
        if not self.host.holds[start]:
            fcntl.lockf(self.host.fd, fcntl.LOCK_SH, size, start)
        self.host.holds[start] += 1

    def let_go(self, start: int, size: int, count: int = 1) -> None:
        """Takes back so many holds."""
        self.host.holds[start] -= count
        assert self.host.holds[start] >= 0, f"span at {start:#x} let go more often than held"
        if not self.host.holds[start]:
            del self.host.holds[start]
            fcntl.lockf(self.host.fd, fcntl.LOCK_UN, size, start)

    def is_on_host(self, start: int) -> bool:
        """Whether the span at `start`, which has been written, has its bytes in host memory."""
        try:
            return os.lseek(self.host.fd, start, os.SEEK_DATA) == start
        except OSError:  # There is nothing but holes from here on.
            return False

    def spill(self, start: int, size: int) -> bool:
        """Moves a span to disk; False if somebody holds it or the disk is full."""
        with self._moving(start, size) as may_move:
            if not may_move:
                return False
            source, done = self.host.bytes[start : start + size].data, 0
            try:
                while done < size:
                    done += os.pwrite(self.disk.fd, source[done:], start + done)
            except OSError:
                return False
            self.host.punch(start, size)
            return True

    def fetch(self, start: int, size: int) -> bool:
        """Moves a span back to host memory; False if somebody holds it."""
        with self._moving(start, size) as may_move:
            if not may_move:
                return False
            self.host.bytes[start : start + size] = self.disk.bytes[start : start + size]
            self._empty_disk(start, size)
            return True

    def empty(self, start: int, size: int, *, on_disk: bool) -> None:
        """Gives the memory of a freed span back; not where somebody still looks at it."""
        if on_disk:
            self._empty_disk(start, size)
            return
        with self._moving(start, size) as may_move:
            if may_move:
                self.host.punch(start, size)

    def _empty_disk(self, start: int, size: int) -> None:
        with suppress(OSError):  # A file system without holes keeps the blocks until their reuse.
            self.disk.punch(start, size)

    @contextmanager
    def _moving(self, start: int, size: int) -> Iterator[bool]:
        if start in self.host.holds:
            yield False
            return
        try:
            fcntl.lockf(self.host.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, size, start)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self.host.fd, fcntl.LOCK_UN, size, start)
