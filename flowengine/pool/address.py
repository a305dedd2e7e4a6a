"""The 64-bit global virtual address of a byte in the pool.

Each tier is one region; worker i owns [base + i * MAX_SEGMENT, base + (i + 1) * MAX_SEGMENT) of it.
Tier, owner and offset follow by arithmetic, so nothing is ever looked up.
"""

from __future__ import annotations

from enum import IntEnum

MAX_SEGMENT = 2**40
"""Bytes of address space per worker and tier."""

REGION = 2**60
"""Bytes of address space per tier: room for 2**20 workers."""


class Tier(IntEnum):
    """Where the bytes are."""

    HOST = 1


def make_address(tier: Tier, owner: int, offset: int) -> int:
    """The address of byte `offset` of worker `owner`'s segment."""
    assert 0 <= owner < REGION // MAX_SEGMENT
    assert 0 <= offset < MAX_SEGMENT
    return tier * REGION + owner * MAX_SEGMENT + offset


def tier_of(address: int) -> Tier:
    """The tier an address lies in."""
    return Tier(address // REGION)


def owner_of(address: int) -> int:
    """The worker whose segment an address lies in."""
    return address % REGION // MAX_SEGMENT


def offset_of(address: int) -> int:
    """The place of an address within its segment."""
    return address % MAX_SEGMENT
