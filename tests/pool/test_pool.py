"""Payloads in the pool: written once, read without a copy, freed with their last lease."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flowengine.errors import RunError
from flowengine.pool import (
    INLINE_BYTES,
    Payload,
    Pool,
    Segment,
    Span,
    inline_payload,
    inline_tensor,
    owner_of,
)
from flowengine.pool.allocator import ALIGNMENT, align
from flowengine.pool.payload import _DTYPES, dtype_name

SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (1,), (7,), (2, 3, 5), (1, 1, 1, 9)]
LIMIT = 1 << 16


def two_pools(limit: int = LIMIT) -> tuple[Pool, Pool]:
    """An owner's pool and a reader's."""
    segments = {0: Segment.create(limit), 1: Segment.create(limit)}
    return Pool(0, segments, limit), Pool(1, segments, limit)


def reserve(pool: Pool, size: int, *, leases: int = 0) -> Span:
    """A span that must be there, with so many leases out."""
    span = pool.reserve(size)
    assert span is not None
    span.leases = leases
    return span


def put(pool: Pool, tensor: Tensor, *, leases: int = 1) -> Payload:
    """The tensor in a span of its own."""
    (payload,) = pool.write([tensor], reserve(pool, tensor.nbytes, leases=leases))
    return payload


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Any bits: also NaNs, infinities and denormals; for bool 0 and 1."""
    count = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
    return raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


def bits(tensor: Tensor) -> bytes:
    """The tensor's bytes in row order."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", sorted(_DTYPES))
def test_a_tensor_comes_back_as_it_was(name: str, shape: tuple[int, ...]) -> None:
    """Of every dtype and shape, in the pool and inline, a tensor comes back bit for bit."""
    tensor = random_tensor(_DTYPES[name], shape)
    owner, reader = two_pools()
    payload = put(owner, tensor)
    assert (payload.dtype, payload.shape, payload.num_bytes) == (name, shape, tensor.nbytes)
    found = [owner.view(payload), reader.view(payload), reader.leased_view(payload)]
    found.append(inline_tensor(inline_payload(tensor)))
    for other in found:
        assert (other.dtype, tuple(other.shape)) == (tensor.dtype, shape)
        assert bits(other) == bits(tensor)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.t(),
        lambda x: x[:, 1:3],
        lambda x: x[::2],
        lambda x: x[0].expand(5, -1),
        lambda x: x.flip(0),
        lambda x: x.to(torch.bfloat16).t(),
        lambda x: x.clone().requires_grad_(),
    ],
    ids=["turned", "columns", "strided", "expanded", "flipped", "bf16", "with gradient"],
)
def test_any_layout_may_be_written(make: object) -> None:
    """A tensor that is no plain block of memory is written as the values it shows."""
    tensor: Tensor = make(torch.arange(24.0).view(4, 6))  # type: ignore[operator]
    owner, reader = two_pools()
    payload = put(owner, tensor.detach())
    assert torch.equal(reader.view(payload), tensor)
    assert torch.equal(inline_tensor(inline_payload(tensor)), tensor)


def test_a_span_holds_several_tensors() -> None:
    """Tensors of one span are aligned, keep apart, and fit in the sum of their aligned sizes."""
    owner, reader = two_pools()
    tensors = [torch.arange(n, dtype=torch.uint8) + n for n in (1, 63, 64, 65, 0, 130)]
    span = reserve(owner, sum(align(tensor.nbytes) for tensor in tensors))
    payloads = owner.write(tensors, span)
    for tensor, payload in zip(tensors, payloads, strict=True):
        assert payload.offset % ALIGNMENT == 0
        assert payload.offset + payload.num_bytes <= span.size
        assert torch.equal(reader.view(payload), tensor)


def test_a_view_is_no_copy() -> None:
    """What a holder of the lease writes, the owner sees: so gradients come back."""
    owner, reader = two_pools()
    payload = put(owner, torch.zeros(10))
    reader.view(payload).fill_(3)
    assert owner.view(payload).sum() == 30


def test_the_address_names_the_owner() -> None:
    """A span's address says in whose segment it lies."""
    _, second = two_pools()
    assert owner_of(reserve(second, 100).address) == 1


def test_a_view_returns_its_lease_when_it_dies() -> None:
    """The lease of a leased view is returned with the last reference to it, not before."""
    owner, reader = two_pools()
    payload = put(owner, torch.ones(100))
    view = reader.leased_view(payload)
    other = view
    del view
    assert reader.dropped == []
    del other
    assert reader.dropped == [payload.span]


@pytest.mark.parametrize(
    "derive",
    [
        lambda x: x[3:5],
        lambda x: x.view(10, 10).t(),
        lambda x: x.numpy(),
        lambda x: x.numpy()[::2],
        lambda x: x.untyped_storage(),
        lambda x: x.detach().requires_grad_(),
    ],
    ids=["slice", "view", "array", "slice of array", "storage", "detached"],
)
def test_what_is_made_of_a_view_keeps_the_lease(derive: object) -> None:
    """A slice, an array or a storage of a leased view holds the lease after the view has died."""
    owner, reader = two_pools()
    payload = put(owner, torch.ones(100))
    part = derive(reader.leased_view(payload))  # type: ignore[operator]
    assert reader.dropped == []
    del part
    assert reader.dropped == [payload.span]


def test_every_view_has_a_lease_of_its_own() -> None:
    """Two leased views of one payload return two leases."""
    owner, reader = two_pools()
    payload = put(owner, torch.ones(100), leases=2)
    views = [reader.leased_view(payload) for _ in range(2)]
    del views[0]
    assert reader.dropped == [payload.span]
    del views
    assert reader.dropped == [payload.span] * 2


def test_a_plain_view_returns_nothing() -> None:
    """A view without lease may die at any time."""
    owner, reader = two_pools()
    payload = put(owner, torch.ones(100))
    reader.view(payload)
    assert reader.dropped == []


@pytest.mark.parametrize("leases", [1, 2, 7])
def test_the_last_lease_frees_the_span(leases: int) -> None:
    """A span is freed with its last lease, which `on_free` hears of once."""
    pool, _ = two_pools()
    freed: list[Span] = []
    pool.on_free = freed.append
    span = reserve(pool, 1000, leases=leases)
    for left in range(leases - 1, 0, -1):
        assert not pool.release(span.address)
        assert span.leases == left
        assert (pool.used_bytes, pool.num_spans) == (1024, 1)
    assert pool.release(span.address)
    assert (pool.used_bytes, pool.num_spans, pool.peak_bytes) == (0, 0, 1024)
    assert freed == [span]


def test_too_many_returns_are_caught() -> None:
    """A lease returned twice is a mistake of the engine, caught at once."""
    pool, _ = two_pools()
    span = reserve(pool, 1000, leases=1)
    with pytest.raises(AssertionError, match="returned more often than leased"):
        pool.release(span.address, 2)


def test_a_full_pool_says_none() -> None:
    """Without room for now `reserve` says None; with the room back it gives a span."""
    pool, _ = two_pools(limit=4096)
    spans = [reserve(pool, 1024, leases=1) for _ in range(4)]
    assert pool.reserve(1) is None
    pool.release(spans[2].address)
    assert pool.reserve(1025) is None
    assert reserve(pool, 1024).address == spans[2].address
    assert pool.peak_bytes == 4096


@given(sizes=st.lists(st.integers(0, 3000), max_size=20))
def test_reserved_bytes_never_exceed_the_limit(sizes: list[int]) -> None:
    """However spans are asked for, what is reserved stays within the limit."""
    pool = Pool(0, {}, 4096)
    spans = [pool.reserve(size) for size in sizes]
    assert pool.used_bytes == sum(align(span.size) for span in spans if span is not None) <= 4096


def test_what_never_fits_is_an_error() -> None:
    """A payload beyond the whole limit is refused with both sizes and a remedy, also when the
    pool is empty."""
    pool, _ = two_pools(limit=4096)
    assert pool.reserve(4096) is not None
    with pytest.raises(
        RunError,
        match=r"a payload of 4097 bytes exceeds this worker's share of the pool, 4096 bytes; "
        r"raise the pool's capacity=, or make packs smaller with max_tokens=",
    ):
        pool.reserve(4097)


@pytest.mark.parametrize("slot", [0, 1])
def test_replicas_exchange_beyond_the_payloads(slot: int) -> None:
    """The exchange areas of a segment keep apart from its payloads and from each other."""
    segments = {0: Segment.create(1 << 16)}
    pool = Pool(0, segments, 1 << 14)
    payload = put(pool, torch.full((1 << 14,), 9, dtype=torch.uint8))
    other = pool.exchange(0, 1 - slot, 1 << 14)
    other.fill_(5)
    pool.exchange(0, slot, 1 << 14).fill_(7)
    assert (pool.view(payload) == 9).all()
    assert (other == 5).all()
    with pytest.raises(RunError, match="bytes of gradients exceed the segment"):
        pool.exchange(0, slot, (1 << 14) + 1)


def test_inline_payloads_are_small() -> None:
    """Only a tensor of at most INLINE_BYTES travels in a message."""
    inline_payload(torch.zeros(INLINE_BYTES, dtype=torch.uint8))
    with pytest.raises(AssertionError):
        inline_payload(torch.zeros(INLINE_BYTES + 1, dtype=torch.uint8))


def test_an_inline_tensor_is_its_own() -> None:
    """A tensor out of a message may be written to, and no other sees it."""
    payload = inline_payload(torch.zeros(4))
    inline_tensor(payload).fill_(1)
    assert inline_tensor(payload).sum() == 0


def test_dtypes_without_plain_bytes_have_no_name() -> None:
    """A dtype that is not in the list cannot be at rest."""
    with pytest.raises(KeyError):
        dtype_name(torch.qint8)
