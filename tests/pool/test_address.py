"""Addresses say tier, owner and offset by arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.pool import MAX_SEGMENT, Tier, make_address, offset_of, owner_of, tier_of
from flowengine.pool.address import REGION

OWNERS = st.integers(0, REGION // MAX_SEGMENT - 1)
OFFSETS = st.integers(0, MAX_SEGMENT - 1)


@given(owner=OWNERS, offset=OFFSETS)
def test_an_address_says_where_it_is(owner: int, offset: int) -> None:
    """Tier, owner and offset come back out of an address, which fits in 64 bits."""
    address = make_address(Tier.HOST, owner, offset)
    assert (tier_of(address), owner_of(address), offset_of(address)) == (Tier.HOST, owner, offset)
    assert 0 < address < 2**63


@given(one=st.tuples(OWNERS, OFFSETS), other=st.tuples(OWNERS, OFFSETS))
def test_addresses_are_ordered_as_owner_and_offset(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    """Two places have two addresses, in the order of their owners, then their offsets."""
    first, second = make_address(Tier.HOST, *one), make_address(Tier.HOST, *other)
    assert (first < second) == (one < other)
    assert (first == second) == (one == other)


def test_no_tensor_is_at_address_zero() -> None:
    """The first byte of the first worker has an address other than 0, which inline payloads use."""
    assert make_address(Tier.HOST, 0, 0) != 0


@pytest.mark.parametrize(
    ("owner", "offset"), [(-1, 0), (REGION // MAX_SEGMENT, 0), (0, -1), (0, MAX_SEGMENT)]
)
def test_what_lies_outside_has_no_address(owner: int, offset: int) -> None:
    """An owner or offset out of range is a mistake of the engine, caught at once."""
    with pytest.raises(AssertionError):
        make_address(Tier.HOST, owner, offset)
