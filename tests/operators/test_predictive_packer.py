"""The predictive packer: two stages to a pack, and corrections that have to be worth it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from flowengine.api import Lengths
from flowengine.operators.packing import CostPacker, PredictivePacker
from flowengine.schedule import Cost, warm

EYE, MODEL = Cost(linear=2e-4), Cost(linear=1e-4)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm()


def mixture(num_samples: int, seed: int = 0) -> list[Lengths]:
    """Text alone and pictures with few words, as long in tokens: unlike in their encoder."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(50, 400, num_samples).tolist()
    rows = [int(each * share) for each, share in zip(tokens, draw.random(num_samples), strict=True)]
    return [
        Lengths(tokens=each, targets=1, media={"image": row if index % 2 else 0})
        for index, (each, row) in enumerate(zip(tokens, rows, strict=True))
    ]


def slowest(lengths: Sequence[Lengths], packs: Sequence[Sequence[int]], model: Cost) -> float:
    """The costliest stage of the costliest pack."""
    loads = []
    for pack in packs:
        members = [lengths[index] for index in pack]
        seen = sum(EYE.linear * member.media["image"] for member in members)
        loads.append(max(seen, model.of_pack(members)))
    return max(loads)


def packer(**more: object) -> PredictivePacker:
    return PredictivePacker(
        max_tokens=2048,
        min_packs=8,
        objective=MODEL,
        encoders={"image": EYE},
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("num_samples", [0, 1, 9, 64, 300])
def test_plan_holds_every_sample_once(num_samples: int) -> None:
    """Within the limit, whatever the number of samples."""
    lengths = mixture(num_samples)
    packs = packer().plan(lengths)
    assert sorted(index for pack in packs for index in pack) == list(range(num_samples))
    assert all(sum(lengths[index].tokens for index in pack) <= 2048 for pack in packs)


@pytest.mark.parametrize("seed", range(5))
def test_no_stage_waits_longer_than_with_one_cost(seed: int) -> None:
    """The costliest stage of all packs is no costlier than in packs of equal tokens."""
    lengths = mixture(64, seed)
    single = CostPacker(max_tokens=2048, min_packs=8).plan(lengths)
    both = packer().plan(lengths)
    assert len(both) == len(single)
    assert slowest(lengths, both, MODEL) <= slowest(lengths, single, MODEL)


def test_encoders_count() -> None:
    """Of equal tokens, the pictures are spread over the packs."""
    lengths = [Lengths(tokens=100, targets=1, media={"image": 100 * (i < 2)}) for i in range(4)]
    packs = PredictivePacker(
        max_tokens=200, min_packs=2, objective=MODEL, encoders={"image": EYE}
    ).plan(lengths)
    assert sorted(sum(index < 2 for index in pack) for pack in packs) == [1, 1]


def test_a_correction_is_followed_where_it_saves_enough() -> None:
    """A measured quadratic cost changes the packs; a correction that costs more does not."""
    lengths = mixture(64)
    followed, dear = packer(corrects=True), packer(corrects=True, correction_s=1e9)
    before = followed.plan(lengths)
    for each in (followed, dear):
        each.learn_cost(linear=1e-5, quadratic=1e-5, constant=0.0)
    assert dear.plan(lengths) == before
    after, measured = followed.plan(lengths), Cost(linear=1e-5, quadratic=1e-5)
    assert slowest(lengths, after, measured) < slowest(lengths, before, measured) - 0.001


def test_a_correction_that_says_the_same_changes_nothing() -> None:
    """With nothing to gain it is switched off."""
    lengths = mixture(64)
    same = packer(corrects=True)
    before = same.plan(lengths)
    same.learn_cost(linear=MODEL.linear, quadratic=0.0, constant=0.0)
    assert same.plan(lengths) == before


def test_it_asks_for_costs_only_if_it_follows_them() -> None:
    """A run without corrections stays repeatable from its settings alone."""
    assert not packer().learns_cost()
    assert pickle.loads(pickle.dumps(packer(corrects=True))).learns_cost()
