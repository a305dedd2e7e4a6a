"""The operator: lengths in, packs out."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from flowengine.api import Lengths
from flowengine.operators.packing import CostPacker
from flowengine.schedule import Cost, TooLongError, warm


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm()


def pages(num_samples: int) -> list[Lengths]:
    """Documents whose images are half of their tokens."""
    drawn = np.random.default_rng(5).lognormal(np.log(200), 0.8, num_samples)
    return [
        Lengths(tokens=2 * rows, targets=rows, media={"image": rows})
        for rows in np.clip(drawn, 4, 1024).astype(int).tolist()
    ]


@pytest.mark.parametrize("num_samples", [0, 1, 64, 1000])
def test_plan_holds_every_sample_once(num_samples: int) -> None:
    """Every sample of the step is in one pack, within the pack's limits."""
    lengths = pages(num_samples)
    packs = CostPacker(max_tokens=4096, max_rows={"image": 1500}).plan(lengths)
    assert sorted(index for group in packs for index in group) == list(range(num_samples))
    assert all(sum(lengths[index].tokens for index in group) <= 4096 for group in packs)
    assert all(sum(lengths[index].media["image"] for index in group) <= 1500 for group in packs)


@pytest.mark.parametrize(("min_packs", "expected"), [(1, 2), (7, 7), (99, 12)])
def test_min_packs_splits_a_step(min_packs: int, expected: int) -> None:
    """A step has at least min_packs packs, if it has as many samples."""
    lengths = [Lengths(tokens=100, targets=50)] * 12
    packs = CostPacker(max_tokens=1000, min_packs=min_packs).plan(lengths)
    assert len(packs) == expected


def test_cost_decides() -> None:
    """With another cost other samples share a pack."""
    lengths = [Lengths(tokens=tokens, targets=1) for tokens in (8, 4, 4)]
    assert CostPacker(max_tokens=16, min_packs=2).plan(lengths) == [[0], [1, 2]]
    per_sample = Cost(linear=0, constant=1)
    assert CostPacker(max_tokens=16, min_packs=2, cost=per_sample).plan(lengths) == [[0, 2], [1]]


def test_cost_may_be_a_function() -> None:
    """A user's function of a sample's lengths decides as a Cost does."""
    lengths = [Lengths(tokens=tokens, targets=1) for tokens in (8, 4, 4)]
    packer = CostPacker(max_tokens=16, min_packs=2, cost=lambda sample: float(sample.targets))
    assert packer.plan(lengths) == [[0, 2], [1]]


def test_plan_survives_pickling() -> None:
    """A packer sent to another process plans the same packs."""
    packer = CostPacker(max_tokens=4096, cost=Cost(quadratic=1e-4, media={"image": 2.0}))
    lengths = pages(200)
    assert pickle.loads(pickle.dumps(packer)).plan(lengths) == packer.plan(lengths)


def test_sample_without_a_pack_is_named() -> None:
    """A sample longer than a pack is refused with its position, its length and the remedy."""
    lengths = [Lengths(tokens=tokens, targets=1) for tokens in (8, 9, 8, 9012)]
    with pytest.raises(TooLongError) as caught:
        CostPacker(max_tokens=8192).plan(lengths)
    remedy = 'raise max_tokens= or set too_long="own-pack"'
    assert str(caught.value) == f"pack: sample 3 has 9012 tokens, a pack holds 8192; {remedy}"
    assert caught.value.position == 3


def test_sample_longer_than_a_pack_has_its_own() -> None:
    """With too_long="own-pack" it is alone in its pack, and the others keep the limits."""
    lengths = [Lengths(tokens=tokens, targets=1) for tokens in (4, 20, 3, 1, 9)]
    packs = CostPacker(max_tokens=8, too_long="own-pack").plan(lengths)
    assert packs == [[0, 2, 3], [1], [4]]


def test_packs_keep_to_a_cost_and_to_sizes() -> None:
    """A cap on cost and on what samples say of themselves bounds every pack."""
    lengths = [Lengths(tokens=4, targets=1, sizes={"images": 1}) for _ in range(8)]
    assert len(CostPacker(max_tokens=99, max_cost=8.0).plan(lengths)) == 4
    assert len(CostPacker(max_tokens=99, max_sizes={"images": 4}).plan(lengths)) == 2
    with pytest.raises(TooLongError, match=r'raise max_sizes\["images"\]'):
        CostPacker(max_tokens=99, max_sizes={"images": 0}).plan(lengths)
    with pytest.raises(ValueError, match='max_sizes has "clips", a sample says'):
        CostPacker(max_tokens=99, max_sizes={"clips": 4}).plan(lengths)


def test_replicas_get_packs_of_like_cost() -> None:
    """With replicas, every slot is full and its packs cost about the same."""
    lengths = [
        Lengths(tokens=tokens, targets=1)
        for tokens in [4000, 3900, 3800, 3700, *([900] * 4), *([100] * 40)]
    ]
    packer = CostPacker(max_tokens=4096, replicas=4, cost=Cost(quadratic=1e-3))
    packs = packer.plan(lengths)
    assert len(packs) % 4 == 0
    costs = [packer.cost_of([lengths[index] for index in members]) for members in packs]
    assert costs == sorted(costs, reverse=True)
    slots = [costs[start : start + 4] for start in range(0, len(costs), 4)]
    assert all(max(slot) < 1.2 * sum(slot) / 4 for slot in slots)
    assert len(CostPacker(max_tokens=4096, replicas=4).plan(lengths[:3])) == 3
