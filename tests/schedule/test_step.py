"""One step over slots and replicas: complete, within the limit, level, and always the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flowengine.schedule import TooLongError, pack, plan_step, warm
from flowengine.schedule.step import Sync

reproducible = settings(derandomize=True, deadline=None)
QUADRATIC = 1 / 24576

Slots = list[list[list[int]]]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm()


def drawn(tokens: int, *, seed: int) -> NDArray[np.int64]:
    """Lengths like those of pictures with text, at most 6,000, together about so many tokens."""
    normal = np.random.default_rng(seed).lognormal(np.log(1500), 0.6, 2000)
    lengths = np.clip(normal, 64, 6000).astype(np.int64)
    return lengths[: int(np.searchsorted(np.cumsum(lengths), tokens))]


def costs_of(slots: Slots, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """The cost of every pack: [slots, replicas]."""
    costs = lengths * (1 + QUADRATIC * lengths)
    return np.array([[costs[ids].sum() for ids in slot] for slot in slots], np.float64)


@reproducible
@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(40, 90),
    st.integers(1, 5),
    st.sampled_from(["lockstep", "accumulate"]),
)
def test_every_sample_is_planned_once(
    lengths: list[int], max_tokens: int, replicas: int, sync: Sync
) -> None:
    """Every sample is in one pack within the limit, in as few slots as the packs need."""
    slots = plan_step(
        lengths, max_tokens=max_tokens, replicas=replicas, linear=1.0, quadratic=0.1, sync=sync
    )
    packs = [ids for slot in slots for ids in slot]
    assert sorted(sample for ids in packs for sample in ids) == list(range(len(lengths)))
    assert all(ids == sorted(ids) for ids in packs)
    assert all(sum(lengths[sample] for sample in ids) <= max_tokens for ids in packs)
    num_packs = len(pack(lengths, max_tokens=max_tokens)[1]) - 1
    assert len(slots) == -(-num_packs // replicas)
    assert all(len(slot) == replicas for slot in slots)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("replicas", [1, 2, 8])
def test_lockstep_packs_of_a_slot_cost_the_same(replicas: int, seed: int) -> None:
    """At 95 % of the room, waiting for the costliest pack of every slot loses less than 0.1 %."""
    lengths = drawn(int(0.95 * 4 * replicas * 16384), seed=seed)
    slots = plan_step(lengths, max_tokens=16384, replicas=replicas, linear=1.0, quadratic=QUADRATIC)
    costs = costs_of(slots, lengths)
    assert len(slots) == 4
    assert costs.mean() > 0.999 * costs.max(axis=1).mean()


@pytest.mark.parametrize("seed", range(3))
def test_accumulating_replicas_cost_the_same(seed: int) -> None:
    """With accumulation, the costliest replica is within 0.1 % of the mean."""
    lengths = drawn(int(0.95 * 4 * 8 * 16384), seed=seed)
    slots = plan_step(
        lengths, max_tokens=16384, replicas=8, linear=1.0, quadratic=QUADRATIC, sync="accumulate"
    )
    totals = costs_of(slots, lengths).sum(axis=0)
    assert totals.max() <= 1.001 * totals.mean()


def test_the_longest_samples_share_a_slot() -> None:
    """Samples that cost more than a mean pack meet in one slot, where they wait for each other."""
    slots = plan_step([90, 90, *[20] * 8], max_tokens=100, replicas=2, linear=1.0, quadratic=0.1)
    assert slots[0] == [[0], [1]]


def test_fewer_samples_than_packs() -> None:
    """A replica without a sample gets an empty pack."""
    assert plan_step([5], max_tokens=8, replicas=3, linear=1.0, quadratic=0.0) == [[[0], [], []]]
    assert plan_step([], max_tokens=8, replicas=3, linear=1.0, quadratic=0.0) == []


def test_same_input_same_plan() -> None:
    """A second call gives the same plan."""
    lengths = drawn(200_000, seed=9)
    plans = [
        plan_step(lengths, max_tokens=16384, replicas=4, linear=1.0, quadratic=QUADRATIC)
        for _ in range(2)
    ]
    assert plans[0] == plans[1]


def test_longer_than_a_pack() -> None:
    """A longer sample is refused, alone in its pack, or in none."""
    arguments = {"max_tokens": 8, "replicas": 2, "linear": 1.0, "quadratic": 0.0}
    with pytest.raises(TooLongError, match="sample 1 has 20 tokens, a pack holds 8"):
        plan_step([4, 20, 3], **arguments)  # type: ignore[arg-type]
    own = plan_step([4, 20, 3], too_long="own-pack", **arguments)  # type: ignore[arg-type]
    assert own == [[[1], [0, 2]]]
    dead = plan_step([4, 20, 3], too_long="dead-letter", **arguments)  # type: ignore[arg-type]
    assert dead == [[[0], [2]]]


def test_wrong_arguments_are_refused() -> None:
    """What makes no plan is refused by name and value."""
    with pytest.raises(ValueError, match="replicas is 0; expected at least 1"):
        plan_step([1], max_tokens=8, replicas=0, linear=1.0, quadratic=0.0)
    with pytest.raises(ValueError, match=r"linear is 0\.0 and quadratic is 0\.0; expected"):
        plan_step([1], max_tokens=8, replicas=1, linear=0.0, quadratic=0.0)
    with pytest.raises(ValueError, match='sync is "never"; expected "lockstep" or'):
        plan_step(
            [1],
            max_tokens=8,
            replicas=1,
            linear=1.0,
            quadratic=0.0,
            sync="never",  # type: ignore[arg-type]
        )
