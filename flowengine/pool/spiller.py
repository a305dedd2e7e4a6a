"""Decides which of an owner's spans are on disk.

Rules.
- Above HIGH of the host's limit spans are spilled until LOW is reached. First those whose next use
  nobody knows, the least recently used first; then those whose next use is farthest (Belady, 1966:
  "A study of replacement algorithms for a virtual-storage computer"), which the plan tells.
- Below LOW spans whose next use is known are fetched back, the nearest first, before they are used.
- A span moves only while it is on lease and nobody holds it. Host memory never exceeds its limit,
  nor the disk its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowengine.pool.address import offset_of
from flowengine.pool.span import Span
from flowengine.pool.tiers import Tiers

HIGH, LOW = 0.9, 0.7


class Spiller:
    """Keeps an owner's host bytes within `limit`, and its disk bytes within `disk_limit`."""

    def __init__(self, tiers: Tiers, *, limit: int, disk_limit: int) -> None:
        self._tiers = tiers
        self._limit = limit
        self._disk_limit = disk_limit
        self._low = int(LOW * limit)
        self._high = int(HIGH * limit)
        self.host_bytes = 0
        self.disk_bytes = 0
        self.peak_host_bytes = 0
        self.peak_disk_bytes = 0

    def make_room(self, size: int, spans: Iterable[Span]) -> bool:
        """Spills until `size` more bytes are in order; whether they fit. They count from now on."""
        if self.host_bytes + size > self._high:
            for span in sorted(filter(_may_spill, spans), key=_coldness, reverse=True):
                if self.host_bytes + size <= self._low:
                    break
                self._spill(span)
        if self.host_bytes + size > self._limit:
            return False
        self.host_bytes += size
        self.peak_host_bytes = max(self.peak_host_bytes, self.host_bytes)
        return True

    def free(self, span: Span) -> None:
        """The span has been freed."""
        self._tiers.empty(offset_of(span.address), span.room, on_disk=span.on_disk)
        if span.on_disk:
            self.disk_bytes -= span.room
        else:
            self.host_bytes -= span.room

    def fetch_nearest(self, spans: Iterable[Span]) -> None:
        """Fetches back what is used next, as far as there is room below the low mark."""
        if not self.disk_bytes:
            return
        for span in sorted(filter(_may_fetch, spans), key=_coldness):
            if self.host_bytes + span.room > self._low:
                break
            if self._tiers.fetch(offset_of(span.address), span.room):
                span.on_disk = False
                self._count(span.room, -span.room)

    def _spill(self, span: Span) -> None:
        if self.disk_bytes + span.room > self._disk_limit:
            return
        if self._tiers.spill(offset_of(span.address), span.room):
            span.on_disk = True
            for entry in span.entries:
                entry["tier"] = "disk"
            self._count(-span.room, span.room)

    def _count(self, host: int, disk: int) -> None:
        self.host_bytes += host
        self.disk_bytes += disk
        self.peak_disk_bytes = max(self.peak_disk_bytes, self.disk_bytes)


def _may_spill(span: Span) -> bool:
    return span.leases > 0 and not span.on_disk


def _may_fetch(span: Span) -> bool:
    return span.leases > 0 and span.on_disk and span.turn is not None


def _coldness(span: Span) -> tuple[int, tuple[int, ...], int]:
    """Larger is colder: an unknown next use before a known one, then the least recently used, or
    the farthest."""
    if span.turn is None:
        return 1, (), -span.used
    return 0, span.turn, span.used
