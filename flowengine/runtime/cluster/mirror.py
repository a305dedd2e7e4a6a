"""The pool of a worker whose peers are on other machines.

Rules.
- A worker's own segment is as everywhere. Those of its peers are *mirrors*: of the same size, but
  of this process alone, and empty until bytes are fetched from the owner. Addresses mean the same.
- Bytes are fetched once per lease: they do not change while the lease is out, but by its holder.
- A gradient is written into the mirror, and travels with the lease's return.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowengine.pool import Payload, Pool, Segment, offset_of, owner_of

Range = tuple[int, int]
"""Offset in the owner's segment, and bytes."""

Fetched = Callable[[], np.ndarray[Any, Any]]
"""Waits for bytes that were asked for."""


class MirrorPool(Pool):
    """ask: begins to fetch ranges of a peer's segment, one after the other."""

    def __init__(
        self,
        owner: int,
        segments: Mapping[int, Segment],
        limit: int,
        *,
        ask: Callable[[int, Sequence[Range]], Fetched],
    ) -> None:
        super().__init__(owner, segments, limit)
        self._ask = ask
        self._leases: dict[int, int] = defaultdict(int)
        self._there: dict[int, list[Range]] = defaultdict(list)
        self._asked: dict[int, list[tuple[list[Range], Fetched]]] = defaultdict(list)

    def prefetch(self, payloads: Sequence[Payload]) -> None:
        """Begins to fetch these, each of which has a lease."""
        by_span: dict[int, list[Payload]] = defaultdict(list)
        for payload in payloads:
            if owner_of(payload.span) != self.owner:
                by_span[payload.span].append(payload)
        for span, theirs in by_span.items():
            self._leases[span] += len(theirs)
            ranges = [_range(payload) for payload in theirs if payload.num_bytes]
            self._asked[span].append((ranges, self._ask(owner_of(span), ranges)))

    def forget(self, address: int, count: int) -> None:
        """Leases on a peer's span have been returned: without any its bytes may change."""
        self._leases[address] -= count
        if self._leases[address] <= 0:
            for known in (self._leases, self._there, self._asked):
                known.pop(address, None)

    def written(self, address: int) -> list[tuple[Range, np.ndarray[Any, Any]]]:
        """What this worker has of a peer's span, to be sent back."""
        raw = self._segments[owner_of(address)].bytes
        return [((at, size), raw[at : at + size]) for at, size in self._there.get(address, [])]

    def exchange(self, owner: int, slot: int, num_bytes: int) -> Tensor:
        area = super().exchange(owner, slot, num_bytes)
        if owner != self.owner:
            size = self._segments[owner].size
            start = size // 2 + slot * (size // 4)
            area.copy_(torch.from_numpy(self._ask(owner, [(start, num_bytes)])().copy()))
        return area

    def _bytes(self, payload: Payload) -> np.ndarray[Any, Any]:
        owner = owner_of(payload.span)
        if owner != self.owner and payload.num_bytes:
            wanted = _range(payload)
            for ranges, fetched in self._asked.pop(payload.span, []):
                self._fill(owner, ranges, fetched(), payload.span)
            if not any(_covers(there, wanted) for there in self._there[payload.span]):
                self._fill(owner, [wanted], self._ask(owner, [wanted])(), payload.span)
        return super()._bytes(payload)

    def _fill(
        self, owner: int, ranges: Sequence[Range], found: np.ndarray[Any, Any], span: int
    ) -> None:
        start, segment = 0, self._segments[owner]
        for at, size in ranges:
            segment.bytes[at : at + size] = found[start : start + size]
            self._join(span, (at, size))
            start += size

    def _join(self, span: int, new: Range) -> None:
        """Adds a range to those that are there, merged with the one it follows."""
        there = self._there[span]
        if there and there[-1][0] + there[-1][1] == new[0]:
            new = (there[-1][0], there[-1][1] + new[1])
            there.pop()
        there.append(new)


def _range(payload: Payload) -> Range:
    return offset_of(payload.span) + payload.offset, payload.num_bytes


def _covers(there: Range, wanted: Range) -> bool:
    return there[0] <= wanted[0] and wanted[0] + wanted[1] <= there[0] + there[1]
