"""What a worker holds of the pool: its own spans, and the leases on them; without their bytes.

Rules.
- Only the owner reserves and frees in its segment. A span is freed when its last lease is returned.
- A lease is counted when a row that names the span is sent, and returned by whoever holds the row
  last; passing the row on passes the lease on.
- What is reserved never exceeds the owner's limit: `reserve` says None, and the owner waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flowengine.errors import RunError
from flowengine.pool.address import Tier, make_address, offset_of
from flowengine.pool.allocator import ALIGNMENT, Allocator, align
from flowengine.pool.payload import Payload
from flowengine.pool.span import Span

if TYPE_CHECKING:
    from torch import Tensor


class Holdings(ABC):
    """Of worker `owner`. limit: bytes that it may have reserved; beyond: bytes more, of a tier
    below. Subclasses say where the bytes are."""

    def __init__(
        self, owner: int, limit: int, *, beyond: int = 0, alignment: int = ALIGNMENT
    ) -> None:
        self.owner = owner
        self.limit = limit
        self.on_free: Callable[[Span], None] = lambda _: None
        self.dropped: list[int] = []
        self._held: Counter[int] = Counter()
        self._alignment = alignment
        self._allocator = Allocator(limit + beyond, alignment)
        self._spans: dict[int, Span] = {}
        self._uses = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of host memory in spans."""
        return self._allocator.used

    @property
    def peak_bytes(self) -> int:
        """The most that `used_bytes` has been."""
        return self._allocator.peak

    @property
    def disk_bytes(self) -> int:
        """Bytes of spans on disk."""
        return 0

    @property
    def peak_disk_bytes(self) -> int:
        """The most that `disk_bytes` has been."""
        return 0

    @property
    def num_spans(self) -> int:
        return len(self._spans)

    def reserve(self, size: int, turn: tuple[int, int] | None = None) -> Span | None:
        """A span of `size` bytes whose next use is at `turn`, the (round, pack) of the plan, or
        nobody knows when; None while there is no room. RunError if there never will be."""
        room = align(size, self._alignment)
        if room > self.limit:
            raise RunError(
                f"a payload of {size} bytes exceeds this worker's share of the pool, {self.limit} "
                "bytes; raise the pool's capacity=, or make packs smaller with max_tokens="
            )
        offset = self._allocator.reserve(size)
        if offset is None:
            return None
        if not self.make_room(room):
            self._allocator.free(offset)
            return None
        self._uses += 1
        address = make_address(Tier.HOST, self.owner, offset)
        span = Span(address, size, room=room, turn=turn, used=self._uses)
        self._spans[address] = span
        return span

    def release(self, address: int, count: int = 1) -> bool:
        """Returns leases of an own span; frees it and says True with the last one."""
        span = self._spans[address]
        span.leases -= count
        assert span.leases >= 0, f"span {address:#x} returned more often than leased"
        if span.leases:
            return False
        del self._spans[address]
        self._allocator.free(offset_of(address))
        self.empty(span)
        self.on_free(span)
        return True

    def reclaim(self) -> list[Span]:
        """Frees every span whose leases are out, because those who held them are dead."""
        lost = [span for span in self._spans.values() if span.leases]
        for span in lost:
            self.release(span.address, span.leases)
        return lost

    def take_dropped(self) -> Counter[int]:
        """The leases, by span, whose views have died since the last call."""
        dropped = Counter(self.dropped.pop() for _ in range(len(self.dropped)))
        self._held -= dropped
        for address, count in dropped.items():
            self.let_go(address, count)
        return dropped

    def recall(self) -> Counter[int]:
        """All leases that are still the views', by span; none of them is returned again. For a
        reader whose producers have ended: nobody writes there any more, so the views stay good."""
        held, self._held, self.dropped = self._held, Counter(), []
        return held

    @abstractmethod
    def make_room(self, size: int) -> bool:
        """Whether the tiers have room for a span of so many bytes more, which count from now on."""

    @abstractmethod
    def empty(self, span: Span) -> None:
        """The span has been freed."""

    @abstractmethod
    def hold(self, payload: Payload) -> None:
        """Keeps the payload's span in its tier until `let_go`; for those who look at it."""

    @abstractmethod
    def let_go(self, address: int, count: int = 1) -> None:
        """Takes back so many holds on a span."""

    @abstractmethod
    def write(self, tensors: Sequence[Tensor], span: Span) -> list[Payload]:
        """Copies the tensors into the span, each aligned; payloads that name them."""

    @abstractmethod
    def leased_view(self, payload: Payload) -> Tensor:
        """The payload's tensor; when it dies, `dropped` gets the span."""
