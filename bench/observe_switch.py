"""What bench_observe switches on and off, in memory that all its processes map."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

SLOTS = 64
SIZE = 8 * (1 + SLOTS)
"""Of the switch's file: the switch, and what noting spans took per process, in nanoseconds."""

VARIABLE = "BENCH_OBSERVE_SWITCH"


class Switch:
    """Shared with all processes that know its file from the environment."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._taken_ns = 0

    @property
    def is_on(self) -> bool:
        return self._map[0] == 1

    @is_on.setter
    def is_on(self, value: bool) -> None:
        self._map[0] = int(value)

    @property
    def spans_s(self) -> float:
        """Seconds that noting spans has taken in all processes."""
        spent_ns: int = sum(struct.unpack_from(f"<{SLOTS}q", self._map, 8))
        return spent_ns / 1e9

    def take(self, spent_ns: int) -> None:
        """Counts this process's time."""
        self._taken_ns += spent_ns
        struct.pack_into("<q", self._map, 8 * (1 + os.getpid() % SLOTS), self._taken_ns)
