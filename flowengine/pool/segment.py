"""A worker's part of the host tier: anonymous shared memory, held by its descriptor alone.

There is no name in the file system, so when the last process that holds or maps it ends, however
it ends, the memory is gone. /dev/shm and its size do not matter.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections import Counter
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Segment:
    """Shared memory of `size` bytes as a byte array; pages cost memory once they are touched.

    holds: how often this process holds the span at each offset, see flowengine.pool.tiers.

    An argument of a new multiprocessing process, it arrives there as the same memory.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self.holds: Counter[int] = Counter()
        self._map = mmap.mmap(fd, size)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)

    @classmethod
    def create(cls, size: int) -> Segment:
        """New memory, sealed against resizing."""
        size = max(size, mmap.PAGESIZE)
        fd = os.memfd_create("flowengine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def on_disk(cls, size: int, directory: Path) -> Segment:
        """The same, but as a file without a name in `directory`: gone when nobody holds it."""
        size = max(size, mmap.PAGESIZE)
        with tempfile.TemporaryFile(dir=directory) as file:
            os.ftruncate(file.fileno(), size)
            return cls(os.dup(file.fileno()), size)

    def punch(self, start: int, size: int) -> None:
        """Gives the pages from `start` on back, of which the last may be a part; they read as 0.
        OSError where the file system cannot do that."""
        self._map.madvise(mmap.MADV_REMOVE, start, size)

    def again(self) -> Segment:
        """The same memory, held and closed on its own."""
        return Segment(os.dup(self.fd), self.size)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_attach, (DupFd(self.fd), self.size))

    def close(self) -> None:
        """Lets go of the memory, which lives on as long as a view of it. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            # The mapping holds a descriptor of its own until the last view of it has died.
            self.bytes = np.empty(0, dtype=np.uint8)
            del self._map


class _Sent(Protocol):
    def detach(self) -> int: ...


def _attach(sent: _Sent, size: int) -> Segment:
    return Segment(sent.detach(), size)
