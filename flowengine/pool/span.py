"""A span: a range of the owner's segment that was reserved together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Span:
    """`leases` are out; `entries` are its catalogue rows.

    room: bytes taken, its size and what aligns it. turn: when it is used next, smaller is sooner:
    (round, pack) of the plan, None if nobody knows. used: the owner's count of reservations and
    looks at the time of its last one. on_disk: whether its bytes are in the disk tier.
    """

    address: int
    size: int
    leases: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)
    room: int = 0
    turn: tuple[int, int] | None = None
    used: int = 0
    on_disk: bool = False
