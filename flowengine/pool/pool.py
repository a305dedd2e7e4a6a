"""One worker's hold on the pool: its own segment to write, its peers' segments to read.

Rules.
- Only the owner reserves and frees in its segment. A span is freed when its last lease is returned.
- A lease is counted when a row that names the span is sent, and returned by whoever holds the row
  last; passing the row on passes the lease on.
- A consumer reads through views that return their lease when the last of them dies. It writes in
  one case only: the gradient of a feature, into the feature's own bytes, while it holds the lease.
- Memory never exceeds the owner's limit: `reserve` says None instead, and the owner waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowengine.errors import RunError
from flowengine.pool.address import MAX_SEGMENT, Tier, make_address, offset_of
from flowengine.pool.allocator import Allocator, align
from flowengine.pool.lease import Lease
from flowengine.pool.payload import DTYPE_NAMES, INLINE_BYTES, Payload, dtype_name, dtype_of
from flowengine.pool.segment import Segment

_HOST = make_address(Tier.HOST, 0, 0)


@dataclass
class Span:
    """A reserved range of the owner's segment. `leases` are out; `entries` are catalogue rows."""

    address: int
    size: int
    leases: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)


class _Leased(np.ndarray[Any, Any]):
    """Bytes of a span that return their lease when nothing refers to them any more."""

    returned: list[int]
    span: int

    def __del__(self) -> None:
        returned = getattr(self, "returned", None)
        if returned is not None:
            returned.append(self.span)


class Pool:
    """The pool as worker `owner` sees it. `limit` bounds what it may have reserved, in bytes."""

    def __init__(self, owner: int, segments: Mapping[int, Segment], limit: int) -> None:
        self.owner = owner
        self.limit = limit
        self.on_free: Callable[[Span], None] = lambda _: None
        self.dropped: list[int] = []
        self._held: Counter[int] = Counter()
        self._segments = segments
        self._allocator = Allocator(limit)
        self._spans: dict[int, Span] = {}

    @property
    def used_bytes(self) -> int:
        return self._allocator.used

    @property
    def peak_bytes(self) -> int:
        return self._allocator.peak

    @property
    def num_spans(self) -> int:
        return len(self._spans)

    def reserve(self, size: int) -> Span | None:
        """A span of `size` bytes; None while there is no room. RunError if there never will be."""
        if align(size) > self.limit:
            raise RunError(
                f"a payload of {size} bytes exceeds this worker's share of the pool, {self.limit} "
                "bytes; raise the pool's capacity=, or make packs smaller with max_tokens="
            )
        offset = self._allocator.reserve(size)
        if offset is None:
            return None
        span = Span(make_address(Tier.HOST, self.owner, offset), size)
        self._spans[span.address] = span
        return span

    def put(self, tensors: Sequence[Tensor]) -> list[Payload] | None:
        """Copies the tensors into one new span, with a lease for each; None while there is no room.
        RunError if there never will be."""
        span = self.reserve(sum(align(tensor.nbytes) for tensor in tensors))
        if span is None:
            return None
        span.leases = len(tensors)
        return self.write(tensors, span)

    def write(self, tensors: Sequence[Tensor], span: Span) -> list[Payload]:
        """Copies the tensors into the span, each aligned; payloads that name them."""
        payloads, offset = [], 0
        for tensor in tensors:
            payload = Payload(
                None, span.address, offset, dtype_name(tensor.dtype), tuple(tensor.shape)
            )
            self.view(payload).copy_(tensor)
            payloads.append(payload)
            offset += align(tensor.nbytes)
        return payloads

    def view(self, payload: Payload) -> Tensor:
        """The tensor itself, without a copy, for as long as the caller holds the lease."""
        return self._tensor(payload, self._bytes(payload))

    def leased_view(self, payload: Payload) -> Tensor:
        """As `view`, but the lease is the view's: when it dies, `dropped` gets the span."""
        raw = self._bytes(payload).view(_Leased)
        raw.returned, raw.span = self.dropped, payload.span
        self._held[payload.span] += 1
        return self._tensor(payload, raw)

    def lease(self, payload: Payload) -> Lease:
        """As `leased_view`, but the lease is released when the caller says so, or its `with` ends:
        `dropped` gets the span then."""
        return Lease(self.view(payload), payload.span, self.dropped.append)

    def copy(self, payloads: Sequence[Payload]) -> Tensor:
        """The rows of these payloads below each other, in memory of the caller's own."""
        return torch.cat([self.view(payload) for payload in payloads])

    def take_dropped(self) -> Counter[int]:
        """The leases, by span, whose views have died since the last call."""
        dropped = Counter(self.dropped.pop() for _ in range(len(self.dropped)))
        self._held -= dropped
        return dropped

    def recall(self) -> Counter[int]:
        """All leases that are still the views', by span; none of them is returned again. For a
        reader whose producers have ended: nobody writes there any more, so the views stay good."""
        held, self._held, self.dropped = self._held, Counter(), []
        return held

    def release(self, address: int, count: int = 1) -> bool:
        """Returns leases of an own span; frees it and says True with the last one."""
        span = self._spans[address]
        span.leases -= count
        assert span.leases >= 0, f"span {address:#x} returned more often than leased"
        if span.leases:
            return False
        del self._spans[address]
        self._allocator.free(offset_of(address))
        self.on_free(span)
        return True

    def reclaim(self) -> list[Span]:
        """Frees every span whose leases are out, because those who held them are dead."""
        lost = [span for span in self._spans.values() if span.leases]
        for span in lost:
            self.release(span.address, span.leases)
        return lost

    def exchange(self, owner: int, slot: int, num_bytes: int) -> Tensor:
        """Bytes [num_bytes] beyond the payloads of a segment, where the replicas of a stage hold
        their summed gradients for each other; `slot` is 0 or 1."""
        segment = self._segments[owner]
        start = segment.size // 2 + slot * (segment.size // 4)
        if num_bytes > segment.size // 4 or start < self.limit:
            raise RunError(f"{num_bytes} bytes of gradients exceed the segment of {segment.size}")
        return torch.from_numpy(segment.bytes[start : start + num_bytes])

    def _bytes(self, payload: Payload) -> np.ndarray[Any, Any]:
        owner, offset = divmod(payload.span - _HOST, MAX_SEGMENT)
        start = offset + payload.offset
        return self._segments[owner].bytes[start : start + payload.num_bytes]

    @staticmethod
    def _tensor(payload: Payload, raw: np.ndarray[Any, Any]) -> Tensor:
        if raw.size == 0:
            return torch.empty(payload.shape, dtype=dtype_of(payload.dtype))
        flat = torch.frombuffer(raw, dtype=dtype_of(payload.dtype))
        return flat if len(payload.shape) == 1 else flat.view(payload.shape)


def inline_payload(tensor: Tensor) -> Payload:
    """The payload of a small tensor, its bytes in the message."""
    assert tensor.nbytes <= INLINE_BYTES
    data = _bytes_of(tensor) if tensor.numel() else b""
    return Payload(data, 0, 0, dtype_name(tensor.dtype), tuple(tensor.shape))


def inline_tensor(payload: Payload) -> Tensor:
    """The tensor of an inline payload: a copy, since messages are read-only."""
    dtype = dtype_of(payload.dtype)
    if not payload.data:
        return torch.empty(payload.shape, dtype=dtype)
    flat = torch.frombuffer(bytearray(payload.data), dtype=dtype)
    return flat if len(payload.shape) == 1 else flat.view(payload.shape)


def _bytes_of(tensor: Tensor) -> bytes:
    plain = tensor.detach() if tensor.requires_grad else tensor
    if tensor.dtype in _WITHOUT_NUMPY:
        plain = plain.contiguous().reshape(-1).view(torch.uint8)
    return plain.numpy(force=True).tobytes()


_WITHOUT_NUMPY = frozenset(
    dtype_of(name) for name in DTYPE_NAMES if name.startswith(("bfloat16", "float8"))
)
"""Dtypes that NumPy does not know."""
