"""The board: a slot of shared memory per worker, where it says what it is doing.

Written by the worker alone, read by the supervisor at any time, also after the worker's death. A
look may fall into a write; it is for people, and for naming the samples in a dead worker's hands.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import get_args

from flowengine.pool import Segment
from flowengine.runtime.events import State

_STATES: tuple[State, ...] = get_args(State)
_HEAD = struct.Struct("<BBHxxxxddddQQQQ")
_SINCE = struct.Struct("<d")
_LEVEL = struct.Struct("<IIQ")
_NUM_IDS, _TEXT_BYTES, _NUM_LEVELS = 256, 80, 32
_LEVELS_AT = _HEAD.size + 8 * _NUM_IDS + _TEXT_BYTES
_SLOT = 4096
assert _LEVELS_AT + 4 + _LEVEL.size * _NUM_LEVELS <= _SLOT


@dataclass(frozen=True)
class Notes:
    """What one worker says of itself.

    since_s: when it entered this state; the times by state do not count it yet.
    num_in_hand may exceed len(in_hand), which is cut. levels: rows and bytes on each of its
    outgoing channels, in their order; cut, too.
    """

    state: State
    since_s: float
    waits_for: str
    busy_s: float
    blocked_s: float
    starved_s: float
    used_bytes: int
    peak_bytes: int
    num_in_hand: int
    in_hand: tuple[int, ...]
    levels: tuple[tuple[int, int], ...] = ()
    disk_bytes: int = 0
    peak_disk_bytes: int = 0


class Board:
    """The slots, in memory that all processes of the run share."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    @property
    def _bytes(self) -> memoryview:
        return memoryview(self._segment.bytes)  # type: ignore[arg-type]

    @staticmethod
    def size_bytes(num_workers: int) -> int:
        """Memory needed for so many workers."""
        return num_workers * _SLOT

    def write(self, worker: int, notes: Notes) -> None:
        """Replaces everything in the worker's slot."""
        text = notes.waits_for.encode("ascii", "replace")[:_TEXT_BYTES]
        _HEAD.pack_into(
            self._bytes,
            worker * _SLOT,
            _STATES.index(notes.state),
            len(text),
            min(notes.num_in_hand, 0xFFFF),
            notes.since_s,
            notes.busy_s,
            notes.blocked_s,
            notes.starved_s,
            notes.used_bytes,
            notes.peak_bytes,
            notes.disk_bytes,
            notes.peak_disk_bytes,
        )
        start = worker * _SLOT + _HEAD.size + 8 * _NUM_IDS
        self._bytes[start : start + len(text)] = text
        self._write_ids(worker, notes.in_hand)
        self._write_levels(worker, notes.levels)

    def take_in_hand(self, worker: int, samples: tuple[int, ...], *, now_s: float) -> None:
        """Notes that the worker begins to work, and on which samples."""
        self._write_ids(worker, samples)
        struct.pack_into("<H", self._bytes, worker * _SLOT + 2, min(len(samples), 0xFFFF))
        self.wake(worker, now_s=now_s)

    def wake(self, worker: int, *, now_s: float) -> None:
        """Notes that the worker waits no longer: it has messages to see to, or work."""
        start = worker * _SLOT
        _SINCE.pack_into(self._bytes, start + 8, now_s)
        struct.pack_into("<B", self._bytes, start, _STATES.index("busy"))

    def _write_ids(self, worker: int, samples: tuple[int, ...]) -> None:
        ids = samples[:_NUM_IDS]
        struct.pack_into(f"<{len(ids)}q", self._bytes, worker * _SLOT + _HEAD.size, *ids)

    def _write_levels(self, worker: int, levels: tuple[tuple[int, int], ...]) -> None:
        at = worker * _SLOT + _LEVELS_AT
        kept = levels[:_NUM_LEVELS]
        struct.pack_into("<I", self._bytes, at, len(kept))
        for index, (items, num_bytes) in enumerate(kept):
            _LEVEL.pack_into(self._bytes, at + 4 + index * _LEVEL.size, items, 0, num_bytes)

    def _read_levels(self, worker: int) -> tuple[tuple[int, int], ...]:
        at = worker * _SLOT + _LEVELS_AT
        (count,) = struct.unpack_from("<I", self._bytes, at)
        starts = (at + 4 + index * _LEVEL.size for index in range(min(count, _NUM_LEVELS)))
        found = (_LEVEL.unpack_from(self._bytes, start) for start in starts)
        return tuple((items, num_bytes) for items, _, num_bytes in found)

    def read(self, worker: int) -> Notes:
        """What the worker last wrote."""
        start = worker * _SLOT
        (state, text, in_hand, since, busy, blocked, starved, used, peak, disk, peak_disk) = (
            _HEAD.unpack_from(self._bytes, start)
        )
        ids = min(in_hand, _NUM_IDS)
        text_at = start + _HEAD.size + 8 * _NUM_IDS
        return Notes(
            state=_STATES[state],
            since_s=since,
            waits_for=bytes(self._bytes[text_at : text_at + text]).decode("ascii", "replace"),
            busy_s=busy,
            blocked_s=blocked,
            starved_s=starved,
            used_bytes=used,
            peak_bytes=peak,
            num_in_hand=in_hand,
            in_hand=struct.unpack_from(f"<{ids}q", self._bytes, start + _HEAD.size),
            levels=self._read_levels(worker),
            disk_bytes=disk,
            peak_disk_bytes=peak_disk,
        )
