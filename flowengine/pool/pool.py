"""One worker's hold on the pool: its own segment to write, its peers' segments to read.

Rules.
- Spans and leases are those of flowengine.pool.holdings.
- A consumer reads through views that return their lease when the last of them dies. It writes in
  one case only: the gradient of a feature, into the feature's own bytes, while it holds the lease.
- With a disk tier, spans that nobody looks at make room first (flowengine.pool.spiller); whoever
  looks at a span holds it (flowengine.pool.tiers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowengine.errors import RunError
from flowengine.pool.address import MAX_SEGMENT, Tier, make_address, offset_of, owner_of
from flowengine.pool.allocator import ALIGNMENT, align
from flowengine.pool.holdings import Holdings
from flowengine.pool.lease import Lease
from flowengine.pool.payload import DTYPE_NAMES, INLINE_BYTES, Payload, dtype_name, dtype_of
from flowengine.pool.segment import Segment
from flowengine.pool.span import Span
from flowengine.pool.spiller import Spiller
from flowengine.pool.tiers import PAGE, Tiers

_HOST = make_address(Tier.HOST, 0, 0)


class _Leased(np.ndarray[Any, Any]):
    """Bytes of a span that return their lease when nothing refers to them any more."""

    returned: list[int]
    span: int

    def __del__(self) -> None:
        returned = getattr(self, "returned", None)
        if returned is not None:
            returned.append(self.span)


class Pool(Holdings):
    """The pool as worker `owner` sees it.

    limit: bytes of host memory that it may have reserved; disk_limit: bytes that it may have
    spilled, into its own one of `disks`, which are there for all workers or for none.
    """

    def __init__(
        self,
        owner: int,
        segments: Mapping[int, Segment],
        limit: int,
        *,
        disks: Mapping[int, Segment] | None = None,
        disk_limit: int = 0,
    ) -> None:
        alignment = PAGE if disks else ALIGNMENT
        super().__init__(owner, limit, beyond=disk_limit, alignment=alignment)
        self._segments = segments
        self._tiers = {i: Tiers(segments[i], disk) for i, disk in (disks or {}).items()}
        self._spiller: Spiller | None = None
        if owner in self._tiers:
            self._spiller = Spiller(self._tiers[owner], limit=limit, disk_limit=disk_limit)

    @property
    def used_bytes(self) -> int:
        """Bytes of host memory in spans."""
        return super().used_bytes if self._spiller is None else self._spiller.host_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that `used_bytes` has been."""
        return super().peak_bytes if self._spiller is None else self._spiller.peak_host_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of spans on disk."""
        return 0 if self._spiller is None else self._spiller.disk_bytes

    @property
    def peak_disk_bytes(self) -> int:
        """The most that `disk_bytes` has been."""
        return 0 if self._spiller is None else self._spiller.peak_disk_bytes

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
        """The tensor itself, without a copy, for as long as the caller has the lease and, where it
        is not the owner's, holds the span (`hold`)."""
        if payload.span in self._spans:
            self._uses += 1
            self._spans[payload.span].used = self._uses
        return self._tensor(payload, self._bytes(payload))

    def leased_view(self, payload: Payload) -> Tensor:
        """As `view`, but the lease is the view's: when it dies, `dropped` gets the span."""
        self.hold(payload)
        raw = self._bytes(payload).view(_Leased)
        raw.returned, raw.span = self.dropped, payload.span
        self._held[payload.span] += 1
        return self._tensor(payload, raw)

    def lease(self, payload: Payload) -> Lease:
        """As `leased_view`, but the lease is released when the caller says so, or its `with` ends:
        `dropped` gets the span then."""
        self.hold(payload)
        self._held[payload.span] += 1
        return Lease(self.view(payload), payload.span, self.dropped.append)

    def copy(self, payloads: Sequence[Payload]) -> Tensor:
        """The rows of these payloads below each other, in memory of the caller's own."""
        return torch.cat([self.view(payload) for payload in payloads])

    def hold(self, payload: Payload) -> None:
        """Keeps the payload's span in its tier until `let_go`; for those who look at it."""
        if self._tiers:
            self._tiers[owner_of(payload.span)].hold(offset_of(payload.span), 1)

    def let_go(self, address: int, count: int = 1) -> None:
        """Takes back so many holds on a span."""
        if self._tiers:
            self._tiers[owner_of(address)].let_go(offset_of(address), 1, count)

    def make_room(self, size: int) -> bool:
        return self._spiller is None or self._spiller.make_room(size, self._spans.values())

    def empty(self, span: Span) -> None:
        if self._spiller is not None:
            self._spiller.free(span)
            self._spiller.fetch_nearest(self._spans.values())

    def exchange(self, owner: int, slot: int, num_bytes: int) -> Tensor:
        """Bytes [num_bytes] beyond the payloads of a segment, where the replicas of a stage hold
        their summed gradients for each other; `slot` is 0 or 1."""
        segment = self._segments[owner]
        start = segment.size // 2 + slot * (segment.size // 4)
        if num_bytes > segment.size // 4 or start < self._allocator.capacity:
            raise RunError(f"{num_bytes} bytes of gradients exceed the segment of {segment.size}")
        return torch.from_numpy(segment.bytes[start : start + num_bytes])

    def _bytes(self, payload: Payload) -> np.ndarray[Any, Any]:
        owner, offset = divmod(payload.span - _HOST, MAX_SEGMENT)
        start = offset + payload.offset
        segment = self._segments[owner] if not self._tiers else self._find(payload.span)
        return segment.bytes[start : start + payload.num_bytes]

    def _find(self, address: int) -> Segment:
        """The tier that has the bytes of a span: the owner knows, others ask the kernel."""
        tiers, own = self._tiers[owner_of(address)], self._spans.get(address)
        on_host = tiers.is_on_host(offset_of(address)) if own is None else not own.on_disk
        return tiers.host if on_host else tiers.disk

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
