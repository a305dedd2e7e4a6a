"""The memory pool: addresses, segments, leases and the catalogue."""

from flowengine.pool.address import MAX_SEGMENT, Tier, make_address, offset_of, owner_of, tier_of
from flowengine.pool.allocator import Allocator
from flowengine.pool.holdings import Holdings
from flowengine.pool.lease import Lease
from flowengine.pool.payload import INLINE_BYTES, Payload
from flowengine.pool.pool import Pool, inline_payload, inline_tensor
from flowengine.pool.segment import Segment
from flowengine.pool.span import Span

__all__ = [
    "INLINE_BYTES",
    "MAX_SEGMENT",
    "Allocator",
    "Holdings",
    "Lease",
    "Payload",
    "Pool",
    "Segment",
    "Span",
    "Tier",
    "inline_payload",
    "inline_tensor",
    "make_address",
    "offset_of",
    "owner_of",
    "tier_of",
]
