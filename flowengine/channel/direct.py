"""A direct channel: tensors from one process to one other, without a graph around it.

Rules.
- `open_direct` makes both ends; each goes to its process as an argument, or stays. Memory and
  socket are anonymous: they are gone when both processes are.
- The producer computes straight into an item's memory and sends it; the consumer sees the same
  memory, without a copy, until it gives the item back. Items of up to INLINE_BYTES travel in the
  message instead.
- At most `items` items and `size_bytes` bytes are under way; beyond that `reserve` waits. Credits
  come back in lots of half the bound or of LOT_BYTES, and always before the consumer itself waits:
  memory that was read just now is still in the processor's caches when it is written again.
- Who waits looks for LOOK_S before going to sleep, since waking a sleeper takes about as long.
- On the link an item is (ITEM, its bytes or its address, dtype, shape); (BACK, count, addresses)
  gives items back; END is the last.
- A peer that has died or closed its end is noticed by whoever waits, or next waits: the consumer
  still gets what had been sent, then its iteration ends; the producer gets WorkerLostError.
"""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor

from flowengine.channel.link import Link
from flowengine.channel.message import Kind
from flowengine.errors import RunError, WorkerLostError
from flowengine.pool import (
    INLINE_BYTES,
    Lease,
    Payload,
    Pool,
    Segment,
    Span,
    inline_tensor,
)
from flowengine.pool.payload import dtype_name

WAIT_S = 60.0
"""How long an end waits for the other before it says so."""

LOOK_S = 200e-6
"""How long an end looks for something new before it sleeps; about what waking it would take."""

LOT_BYTES = 1 << 22
"""Bytes that a consumer gives back at once, if they are not half the items before."""


@dataclass
class DirectEnd:
    """One end's memory and socket; an argument of a new multiprocessing process."""

    segment: Segment
    connection: socket.socket
    items: int

    def close(self) -> None:
        """Lets go of both; for the process that has passed this end on."""
        self.segment.close()
        self.connection.close()


def open_direct(*, items: int, size_bytes: int) -> tuple[DirectEnd, DirectEnd]:
    """The producer's and the consumer's end of a channel that holds `items` tensors of together
    `size_bytes` bytes."""
    segment = Segment.create(size_bytes)
    one, other = socket.socketpair()
    return DirectEnd(segment, one, items), DirectEnd(segment.again(), other, items)


class DirectOutlet:
    """The producer's end at work."""

    def __init__(self, end: DirectEnd, *, wait_s: float = WAIT_S) -> None:
        self.pool = Pool(0, {0: end.segment}, end.segment.size)
        self.sent = 0
        self._link = Link(end.connection)
        self._credits = end.items
        self._wait_s = wait_s
        self._small: _Small | None = None

    def reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> Item:
        """Memory for one tensor, to be filled in a `with`, which sends it; waits for room.

        WorkerLostError if the consumer has gone, RunError if it does not make room in time.
        """
        while not self._credits:
            self._wait("credits")
        if self._small is not None and self._small.key == (shape, dtype):
            return Item(self, self._small.tensor, None)
        size = math.prod(shape) * dtype.itemsize
        if size <= INLINE_BYTES:
            self._small = _Small.of(shape, dtype)
            return Item(self, self._small.tensor, None)
        while (span := self.pool.reserve(size)) is None:
            self._wait("room in the pool")
        payload = Payload(None, span.address, 0, dtype_name(dtype), shape)
        return Item(self, self.pool.view(payload), (span, payload))

    def put(self, tensor: Tensor) -> None:
        """Sends a copy of the tensor."""
        with self.reserve(tuple(tensor.shape), tensor.dtype) as memory:
            memory.copy_(tensor)

    def close(self) -> None:
        """Says that nothing follows, and waits until the consumer has given everything back or has
        gone."""
        self._link.send((Kind.END,))
        while self.pool.num_spans and not self._link.closed:
            self._take_back("its items")
        self._link.close()

    def send(self, place: tuple[Span, Payload] | None) -> None:
        """Sends what an item's `with` has filled."""
        self._credits -= 1
        self.sent += 1
        if place is None:
            small = self._small
            assert small is not None
            self._link.send((Kind.ITEM, small.raw, small.name, list(small.key[0])))
        else:
            span, payload = place
            span.leases = 1
            self._link.send((Kind.ITEM, span.address, payload.dtype, list(payload.shape)))

    def _wait(self, what: str) -> None:
        self._take_back(what)
        if self._link.closed:
            lost = self.pool.reclaim()
            raise WorkerLostError(
                f"the consumer of this channel has gone, {self.sent} items were sent; "
                f"{len(lost)} spans that it held have been taken back"
            )

    def _take_back(self, what: str) -> None:
        self._link.flush()
        if not self._link.wait(self._wait_s, look_s=LOOK_S):
            raise RunError(
                f"the consumer gave nothing back for {self._wait_s:g} s, while the producer waits "
                f"for {what}; let go of items that were received"
            )
        for _, count, addresses in self._link.receive():
            self._credits += count
            for address in addresses:
                self.pool.release(address)


@dataclass
class _Small:
    """Memory for items that travel in the message, one after the other."""

    key: tuple[tuple[int, ...], torch.dtype]
    name: str
    tensor: Tensor
    raw: memoryview

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype) -> _Small:
        tensor = torch.empty(shape, dtype=dtype)
        raw = tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b""
        return cls((shape, dtype), dtype_name(dtype), tensor, memoryview(raw))


class Item:
    """A tensor to be filled in a `with`; it is sent at the end, unless there was an error."""

    __slots__ = ("_outlet", "_place", "_tensor")

    def __init__(
        self, outlet: DirectOutlet, tensor: Tensor, place: tuple[Span, Payload] | None
    ) -> None:
        self._outlet = outlet
        self._tensor = tensor
        self._place = place

    def __enter__(self) -> Tensor:
        return self._tensor

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._outlet.send(self._place)
        elif self._place is not None:
            self._outlet.pool.release(self._place[0].address, 0)


class DirectInlet:
    """The consumer's end at work: iterate over it, and use each lease in a `with`."""

    def __init__(self, end: DirectEnd, *, wait_s: float = WAIT_S) -> None:
        self.pool = Pool(1, {0: end.segment}, 0)
        self.received = 0
        self._link = Link(end.connection)
        self._wait_s = wait_s
        self._lot = max(1, end.items // 2)
        self._arrived: deque[tuple[bytes | int, str, list[int]]] = deque()
        self._ended = False
        self._done: list[int] = []
        self._done_bytes = 0
        self._sizes: dict[int, int] = {}

    def __iter__(self) -> Iterator[Lease]:
        """Leases on the items, in order; RunError if none comes in time."""
        while self._arrived or self._wait():
            self.received += 1
            yield self._lease(*self._arrived.popleft())

    @property
    def has_ended(self) -> bool:
        """Whether the producer said that nothing follows; False after its death."""
        return self._ended

    def close(self) -> None:
        """Gives everything back that was let go of, and closes this end."""
        self._give_back()
        self._link.drain()
        self._link.close()

    def _lease(self, where: bytes | int, dtype: str, shape: list[int]) -> Lease:
        if isinstance(where, int):
            payload = Payload(None, where, 0, dtype, tuple(shape))
            self._sizes[where] = payload.num_bytes
            return Lease(self.pool.view(payload), where, self._on_release)
        tensor = inline_tensor(Payload(where, 0, 0, dtype, tuple(shape)))
        return Lease(tensor, 0, self._on_release)

    def _on_release(self, address: int) -> None:
        self._done.append(address)
        self._done_bytes += self._sizes.pop(address, 0)
        if len(self._done) >= self._lot or self._done_bytes >= LOT_BYTES:
            self._give_back()

    def _wait(self) -> bool:
        """Waits for an item; False if there will be none."""
        self._take_in()
        while not (self._arrived or self._ended or self._link.closed):
            self._give_back()
            self._link.flush()
            if not self._link.wait(self._wait_s, look_s=LOOK_S):
                raise RunError(f"the producer of this channel sent nothing for {self._wait_s:g} s")
            self._take_in()
        return bool(self._arrived)

    def _take_in(self) -> None:
        for kind, *fields in self._link.receive():
            if kind == Kind.END:
                self._ended = True
                return
            self._arrived.append((fields[0], fields[1], fields[2]))

    def _give_back(self) -> None:
        if self._done:
            done, self._done, self._done_bytes = self._done, [], 0
            self._link.send((Kind.BACK, len(done), [address for address in done if address]))
