"""A lease lives in a `with`, and its tensor with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flowengine.errors import LeaseError
from flowengine.pool import Payload, Pool, Segment, lease

both = pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
watched = pytest.mark.usefixtures("_watched")


@pytest.fixture
def _watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "DEBUG", True)


def put(*tensors: Tensor) -> tuple[Pool, list[Payload]]:
    pool = Pool(0, {0: Segment.create(1 << 16)}, 1 << 16)
    payloads = pool.put(tensors)
    assert payloads is not None
    return pool, payloads


@both
def test_a_lease_is_given_back_at_the_end_of_its_with(
    debug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside the tensor is there; after it the lease is returned, once."""
    monkeypatch.setattr(lease, "DEBUG", debug)
    pool, (payload,) = put(torch.arange(9))
    with pool.lease(payload) as x:
        assert torch.equal(x, torch.arange(9))
        assert not pool.dropped
    assert pool.take_dropped() == {payload.span: 1}


@both
def test_a_lease_may_be_released_early(debug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Released inside its `with`, a lease is not returned again at the end."""
    monkeypatch.setattr(lease, "DEBUG", debug)
    pool, (payload,) = put(torch.arange(9))
    held = pool.lease(payload)
    with held:
        held.release()
    assert pool.dropped == [payload.span]
    with pytest.raises(LeaseError, match=r"used after its lease had been released"):
        held.release()


@watched
def test_use_after_release_names_the_line() -> None:
    """When watched, the error says where the lease was released."""
    pool, (payload,) = put(torch.arange(9.0))
    held = pool.lease(payload)
    held.release()
    with pytest.raises(LeaseError, match=r"lease had been released, at test_lease\.py:\d+; copy"):
        _ = held.tensor


def test_without_debugging_the_error_says_how_to_learn_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unwatched, it says what to set."""
    monkeypatch.setattr(lease, "DEBUG", False)
    pool, (payload,) = put(torch.arange(9.0))
    held = pool.lease(payload)
    held.release()
    with pytest.raises(LeaseError, match="set FLOWENGINE_DEBUG=leases to have it named"):
        _ = held.tensor


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: torch.cat([torch.zeros(1), x]),
        lambda x: x[2:].sum(),
        lambda x: x.view(3, 3).t()[0].mul_(2),
        lambda x: x.tolist(),
        lambda x: x.clone(),
    ],
    ids=["add", "cat", "slice", "view", "list", "clone"],
)
@watched
def test_a_tensor_cannot_be_used_after_its_lease(use: Callable[[Any], Any]) -> None:
    """When watched, neither the tensor nor a view of it can be used any more, by any function."""
    pool, (payload,) = put(torch.arange(9.0))
    with pool.lease(payload) as x:
        part = x.view(9)[:]
        use(x.clone())
    for late in (x, part):
        with pytest.raises(LeaseError, match=r"test_lease\.py:\d+"):
            use(late)


@watched
def test_what_was_computed_from_it_stays() -> None:
    """Results in memory of their own are plain tensors, gradients too."""
    pool, (payload,) = put(torch.arange(9.0))
    with pool.lease(payload) as x:
        leaf = x.detach().requires_grad_()
        y = (leaf * leaf).sum()
        y.backward()  # type: ignore[no-untyped-call]
        gradient = leaf.grad
        copied = x.clone()
    assert type(copied) is type(y) is Tensor
    assert gradient is not None
    assert torch.equal(torch.Tensor(gradient), 2 * torch.arange(9.0))
    assert torch.equal(copied, torch.arange(9.0))


def test_several_are_put_and_copied_at_once() -> None:
    """`put` takes several tensors into one span with a lease each; `copy` joins their rows."""
    pool, payloads = put(torch.ones(2, 3), torch.zeros(1, 3))
    assert len({payload.span for payload in payloads}) == pool.num_spans == 1
    assert torch.equal(pool.copy(payloads), torch.tensor([[1.0] * 3, [1.0] * 3, [0.0] * 3]))
    assert not pool.release(payloads[0].span)
    assert pool.release(payloads[1].span)


def test_a_full_pool_puts_nothing() -> None:
    """`put` says None while there is no room."""
    pool, _ = put(torch.zeros(1 << 14))
    assert pool.put([torch.zeros(1)]) is None


def test_what_the_dead_held_is_taken_back() -> None:
    """`reclaim` frees what is on lease, and leaves what is not."""
    pool, (payload,) = put(torch.zeros(100))
    mine = pool.reserve(100)
    assert mine is not None
    assert [span.address for span in pool.reclaim()] == [payload.span]
    assert pool.num_spans == 1
