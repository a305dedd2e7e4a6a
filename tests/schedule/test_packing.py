"""Packs: complete, within their limits, few, equal in cost, and always the same."""

from __future__ import annotations

import pickle
import subprocess
import sys
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flowengine.schedule import TooLong, TooLongError, balance, kernels, least_packs, pack, warm

Packed = tuple[NDArray[np.int64], NDArray[np.int64]]
CAUSAL = 1 / 12288
"""Quadratic over linear cost of a causal decoder of width 1,024: 2 w T**2 to 24 w**2 T FLOPs."""

reproducible = settings(derandomize=True, deadline=None)
few_lengths = st.lists(st.integers(0, 12), max_size=7)
many_lengths = st.lists(st.integers(0, 40), max_size=80)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm()


def members(packed: Packed) -> list[list[int]]:
    ids, offsets = packed
    return [ids[start:stop].tolist() for start, stop in pairwise(offsets.tolist())]


def heavy_tailed(num_samples: int, *, seed: int) -> NDArray[np.int64]:
    """Lengths like those of a text mixture: a median of 400, at most 8,192."""
    drawn = np.random.default_rng(seed).lognormal(np.log(400), 1.1, num_samples)
    return np.clip(drawn, 8, 8192).astype(np.int64)


def imbalance(costs: NDArray[np.float64], packed: Packed) -> float:
    ids, offsets = packed
    per_pack = np.add.reduceat(costs[ids], offsets[:-1])
    return float(per_pack.max() / per_pack.mean())


def fewest_packs(lengths: list[int], max_tokens: int) -> int:
    """The least number of packs there is, by trying every way."""

    def least(rest: tuple[int, ...], rooms: tuple[int, ...], bound: int) -> int:
        if not rest or len(rooms) >= bound:
            return len(rooms)
        for place, room in enumerate(rooms):
            if room >= rest[0]:
                left = (*rooms[:place], room - rest[0], *rooms[place + 1 :])
                bound = min(bound, least(rest[1:], left, bound))
        return min(bound, least(rest[1:], (*rooms, max_tokens - rest[0]), bound))

    return least(tuple(sorted(lengths, reverse=True)), (), len(lengths))


def least_worst_cost(costs: list[int], num_packs: int) -> int:
    """The least cost that the costliest of so many packs can have, by trying every way."""
    loads = {(0,) * num_packs}
    for cost in costs:
        loads = {
            tuple(sorted((*load[:k], load[k] + cost, *load[k + 1 :])))
            for load in loads
            for k in range(num_packs)
        }
    return min(load[-1] for load in loads)


def check_packed(packed: Packed, lengths: list[int], max_tokens: int) -> None:
    packs = members(packed)
    assert sorted(index for group in packs for index in group) == list(range(len(lengths)))
    assert all(group == sorted(group) and group for group in packs)
    assert packs == sorted(packs)
    assert all(sum(lengths[index] for index in group) <= max_tokens for group in packs)
    assert [array.dtype for array in packed] == [np.int64, np.int64]


@reproducible
@given(many_lengths, st.integers(40, 100))
def test_pack_holds_every_sample_once(lengths: list[int], max_tokens: int) -> None:
    """Every sample is in one pack, in order, and no pack exceeds its limit."""
    check_packed(pack(lengths, max_tokens=max_tokens), lengths, max_tokens)


@reproducible
@given(many_lengths, st.integers(40, 100))
def test_pack_opens_none_while_another_has_room(lengths: list[int], max_tokens: int) -> None:
    """No two packs would fit into one."""
    packs = members(pack(lengths, max_tokens=max_tokens))
    filled = sorted(sum(lengths[index] for index in group) for group in packs)
    assert len(filled) < 2 or filled[0] + filled[1] > max_tokens


@reproducible
@given(few_lengths, st.integers(12, 20))
def test_pack_is_near_the_fewest(lengths: list[int], max_tokens: int) -> None:
    """Best fit decreasing makes at most 3/2 of the fewest packs (Simchi-Levi 1994)."""
    num_packs = len(members(pack(lengths, max_tokens=max_tokens)))
    assert 2 * num_packs <= 3 * fewest_packs(lengths, max_tokens)


def test_pack_takes_the_fullest_pack_with_room() -> None:
    """A sample goes to the pack that it fills best, not to the first."""
    assert members(pack([5, 6, 4, 3], max_tokens=10)) == [[0, 3], [1, 2]]


@reproducible
@given(many_lengths, st.integers(40, 100), st.randoms(use_true_random=False))
def test_order_does_not_matter(lengths: list[int], max_tokens: int, random: Random) -> None:
    """The same lengths in another order give packs of the same lengths."""
    shuffled = random.sample(lengths, len(lengths))
    contents = [
        sorted(sorted(given[index] for index in group) for group in packs)
        for given in (lengths, shuffled)
        for packs in [members(pack(given, max_tokens=max_tokens))]
    ]
    assert contents[0] == contents[1]


@reproducible
@given(many_lengths, st.integers(40, 100))
def test_pack_is_never_worse_than_first_fit(lengths: list[int], max_tokens: int) -> None:
    """On random lengths first fit, in the order given, needs no fewer packs."""
    rooms: list[int] = []
    for length in lengths:
        place = next((k for k, room in enumerate(rooms) if room >= length), len(rooms))
        if place == len(rooms):
            rooms.append(max_tokens)
        rooms[place] -= length
    num_packs = len(members(pack(lengths, max_tokens=max_tokens)))
    assert least_packs(lengths, max_tokens=max_tokens) <= num_packs <= len(rooms)


@reproducible
@given(few_lengths, st.integers(12, 20))
def test_least_packs_is_a_bound(lengths: list[int], max_tokens: int) -> None:
    """The bound is at least the tokens' share and at most the fewest packs there are."""
    bound = least_packs(lengths, max_tokens=max_tokens)
    assert -(-sum(lengths) // max_tokens) <= bound <= fewest_packs(lengths, max_tokens)


def test_look_ahead_beats_best_fit_decreasing() -> None:
    """Where few lengths recur, as with tiles of one size, a search finds fewer packs."""
    draw = np.random.default_rng(0)
    tiles = draw.choice([576, 1728, 2304, 2880], p=[0.55, 0.16, 0.07, 0.22], size=2000)
    lengths = (tiles + draw.lognormal(np.log(150), 0.8, 2000)).astype(np.int32)
    order = kernels.longest_first(lengths)
    _, decreasing = kernels.best_fit_decreasing(order, lengths, 8192)
    assert len(members(pack(lengths, max_tokens=8192))) < 0.995 * decreasing


def test_longer_than_a_pack() -> None:
    """A longer sample is alone in its pack, or in none."""
    lengths = [4, 20, 3, 2, 11]
    assert members(pack(lengths, max_tokens=8, too_long="own-pack")) == [[0, 2], [1], [3], [4]]
    assert members(pack(lengths, max_tokens=8, too_long="dead-letter")) == [[0, 2], [3]]
    with pytest.raises(ValueError, match='too_long is "cut"; expected one of "error", "own-pack"'):
        pack(lengths, max_tokens=8, too_long="cut")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_second_process_loads_the_compiled_loops() -> None:
    """warm() leaves the loops on the disk, from where the next process loads them."""
    source = "from flowengine.schedule import warm; warm(); from flowengine.schedule import kernels"
    source += "; print(len(kernels.best_fit_decreasing.stats.cache_hits))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout.split() == ["1"], done.stderr


@pytest.mark.parametrize("max_tokens", [8192, 10**15])
def test_pack_takes_arrow(max_tokens: int) -> None:
    """An Arrow column, in one or in several pieces, gives the packs of its NumPy array."""
    lengths = heavy_tailed(100, seed=1)
    expected = members(pack(lengths, max_tokens=max_tokens))
    assert members(pack(pa.array(lengths), max_tokens=max_tokens)) == expected
    pieces = pa.chunked_array([lengths[:40], lengths[40:]])
    assert members(pack(pieces, max_tokens=max_tokens)) == expected


@pytest.mark.parametrize("max_tokens", [0, 1, 2])
def test_smallest_limits(max_tokens: int) -> None:
    """No samples make no packs, and samples of the limit's length make one pack each."""
    assert members(pack([], max_tokens=max_tokens)) == []
    expected = [[0], [1]] if max_tokens else [[0, 1]]
    assert members(pack([max_tokens] * 2, max_tokens=max_tokens)) == expected


@reproducible
@given(many_lengths, st.integers(40, 100), st.integers(1, 100), st.floats(0, 1))
def test_balance_holds_every_sample_once(
    lengths: list[int], max_tokens: int, min_packs: int, quadratic: float
) -> None:
    """Every sample is in one pack, and there are as many packs as asked or as needed."""
    tokens = np.array(lengths, np.float64)
    costs = tokens + quadratic * tokens**2
    packed = balance(lengths, costs, max_tokens=max_tokens, min_packs=min_packs)
    check_packed(packed, lengths, max_tokens)
    needed = len(members(pack(lengths, max_tokens=max_tokens)))
    assert len(members(packed)) == max(needed, min(min_packs, len(lengths)))


@reproducible
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40), st.integers(9, 30))
def test_balance_keeps_row_limits(sizes: list[tuple[int, int]], max_rows: int) -> None:
    """No pack holds more rows of a modality than its limit."""
    tokens, rows = [size[0] for size in sizes], [size[1] for size in sizes]
    packed = balance(
        tokens,
        np.array(tokens, np.float64),
        max_tokens=20,
        sizes={"image": rows},
        limits={"image": max_rows},
    )
    check_packed(packed, tokens, 20)
    assert all(sum(rows[index] for index in group) <= max_rows for group in members(packed))


@reproducible
@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(1, 3))
def test_balance_is_near_the_best(costs: list[int], min_packs: int) -> None:
    """Where tokens do not bind, the costliest pack is within 4/3 of the best (Graham 1969)."""
    array = np.array(costs, np.float64)
    packs = members(balance(costs, array, max_tokens=100, min_packs=min_packs))
    worst = max(sum(costs[index] for index in group) for group in packs)
    assert 3 * worst <= 4 * least_worst_cost(costs, len(packs))


@reproducible
@given(many_lengths, st.integers(40, 100))
def test_no_swap_relieves_the_costliest_pack(lengths: list[int], max_tokens: int) -> None:
    """Packs are even to 0.1 %, or some costliest pack has no sample whose exchange for another
    would leave both cheaper."""
    packs = members(balance(lengths, np.array(lengths, float), max_tokens=max_tokens))
    filled = [sum(lengths[index] for index in group) for group in packs]
    stuck = [
        all(
            max(filled[k] - saved, filled[other] + saved) >= filled[k]
            for other in range(len(packs))
            for saved in {lengths[a] - lengths[b] for a in packs[k] for b in packs[other]}
        )
        for k in range(len(packs))
        if filled[k] == max(filled)
    ]
    assert any(stuck) or max(filled, default=0) * len(packs) <= 1.001 * sum(filled)


@pytest.mark.parametrize(
    ("num_samples", "quadratic", "bound"),
    [(64, 0.0, 1.01), (64, CAUSAL, 1.10), (512, 0.0, 1.01), (4096, 0.0, 1.01)],
)
@pytest.mark.parametrize("seed", range(5))
def test_packs_cost_nearly_the_same(
    num_samples: int, quadratic: float, bound: float, seed: int
) -> None:
    """On heavy-tailed lengths the costliest pack is within the bound of the mean, or is one sample
    which no packing could relieve."""
    lengths = heavy_tailed(num_samples, seed=seed)
    costs = lengths * (1.0 + quadratic * lengths)
    packed = balance(lengths, costs, max_tokens=8192)
    mean = costs.sum() / len(members(packed))
    assert imbalance(costs, packed) < bound * max(1.0, float(costs.max()) / mean)


def test_balance_beats_best_fit() -> None:
    """Equal cost comes from spreading; best fit decreasing leaves its last pack half empty."""
    lengths = heavy_tailed(64, seed=4)
    costs = lengths.astype(np.float64)
    filled = imbalance(costs, pack(lengths, max_tokens=8192))
    balanced = imbalance(costs, balance(lengths, costs, max_tokens=8192))
    assert filled > 1.1
    assert balanced < 1.005


def test_without_room_to_spread_it_fills() -> None:
    """Where spreading by cost finds no room, best fit decreasing does, in as few packs."""
    costs = np.array([1.0, 9.0, 8.0, 1.0])
    assert members(balance([6, 5, 5, 4], costs, max_tokens=10)) == [[0, 3], [1, 2]]


def test_without_room_to_spread_it_still_splits() -> None:
    """min_packs holds, too, where best fit decreasing has to help out."""
    costs = np.array([3.0, 2.0, 1.0, 1.0, 4.0, 1.0])
    packs = members(balance([8, 2, 7, 6, 1, 10], costs, max_tokens=10, min_packs=5))
    assert packs == [[0], [1, 2], [3], [4], [5]]


def test_same_input_same_packs() -> None:
    """A second call, and a call on a copy in another integer type, give the same arrays."""
    lengths = heavy_tailed(1000, seed=4)
    costs = lengths * (1.0 + CAUSAL * lengths)
    first = balance(lengths, costs, max_tokens=8192)
    for again in (lengths, lengths.astype(np.uint16), lengths.tolist()):
        for one, other in zip(first, balance(again, costs, max_tokens=8192), strict=True):
            np.testing.assert_array_equal(one, other)


def test_equal_samples_keep_their_order() -> None:
    """Ties go to the lowest index."""
    packed = balance([2] * 6, np.full(6, 2.0), max_tokens=4, min_packs=3)
    assert members(packed) == [[0, 3], [1, 4], [2, 5]]


def test_too_long_names_sample_length_and_remedy() -> None:
    """A sample that fits no pack is refused by position, and the text can name it otherwise."""
    with pytest.raises(TooLongError) as caught:
        pack([10, 9012, 9013], max_tokens=8192)
    error = pickle.loads(pickle.dumps(caught.value))
    text = 'has 9012 tokens, a pack holds 8192; raise max_tokens= or set too_long="own-pack"'
    assert str(error) == f"pack: sample 1 {text}"
    assert error.message(sample=4711) == f"pack: sample 4711 {text}"
    assert (error.position, error.size, error.limit) == (1, 9012, 8192)


def test_too_much_of_anything_is_named() -> None:
    """A sample with more of something than a pack holds is refused like one that is too long."""
    with pytest.raises(ValueError, match=r"sample 1 has 9 images, a pack holds 8; raise limits"):
        balance([1, 1], np.ones(2), max_tokens=4, sizes={"images": [0, 9]}, limits={"images": 8})


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        ([1.5], r"lengths are float64 of shape \(1,\); expected integers \[n\]"),
        (pa.array([1, None]), "expected integers .* without nulls"),
        ([[1, 2]], r"int64 of shape \(1, 2\)"),
        ([3, -1], "sample 1 has length -1; expected 0 or more"),
        (np.array([2**64 - 1], np.uint64), "sample 0 has length -1"),
    ],
)
def test_wrong_lengths_are_refused(lengths: object, text: str) -> None:
    """What is no list of lengths never reaches a compiled loop."""
    with pytest.raises(ValueError, match=text):
        pack(lengths, max_tokens=8)  # type: ignore[arg-type]


@pytest.mark.parametrize("costs", [np.ones(2), np.array([1.0, 1.0, -1.0]), np.full(3, np.nan)])
def test_wrong_costs_are_refused(costs: NDArray[np.float64]) -> None:
    """A cost is there for every sample, and is a number of at least 0."""
    with pytest.raises(ValueError, match="for 3 samples; expected one per sample, at least 0"):
        balance([1, 1, 1], costs, max_tokens=8)


def test_limit_without_sizes_is_refused() -> None:
    """A limit needs the sizes that it bounds, one for each sample."""
    with pytest.raises(ValueError, match=r"limits are on \['image'\], sizes are of \['audio'\]"):
        balance([1], np.ones(1), max_tokens=8, sizes={"audio": [1]}, limits={"image": 1})
    with pytest.raises(ValueError, match=r"sizes have \[2, 1\] samples; expected equally many"):
        balance([1, 1], np.ones(2), max_tokens=8, sizes={"image": [1]}, limits={"image": 1})


@reproducible
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40), st.integers(9, 30))
def test_pack_keeps_all_limits(samples: list[tuple[int, int]], most_images: int) -> None:
    """With several limits too, every sample is in one pack, and needs no more than first fit."""
    tokens, images = [size[0] for size in samples], [size[1] for size in samples]
    packed = pack(tokens, max_tokens=20, sizes={"images": images}, limits={"images": most_images})
    check_packed(packed, tokens, 20)
    packs = members(packed)
    assert all(sum(images[index] for index in group) <= most_images for group in packs)
    least = max(-(-sum(tokens) // 20), -(-sum(images) // most_images))
    assert least <= len(packs) <= 2 * max(least, 1) + 1


def test_scarce_room_goes_first() -> None:
    """Where another limit is scarcer than tokens, samples that take most of it are placed first."""
    tokens, images = [6, 6, 5, 5, 4, 4], [1, 1, 5, 5, 9, 9]
    packed = pack(tokens, max_tokens=10, sizes={"images": images}, limits={"images": 10})
    assert len(members(packed)) == 3


@pytest.mark.parametrize(
    ("too_long", "expected"), [("own-pack", [[0, 2], [1]]), ("dead-letter", [[0, 2]])]
)
def test_more_than_another_limit(too_long: TooLong, expected: list[list[int]]) -> None:
    """What exceeds another limit goes where a sample that is too long does."""
    found = pack(
        [1, 1, 1],
        max_tokens=8,
        sizes={"images": [1, 9, 1]},
        limits={"images": 8},
        too_long=too_long,
    )
    assert members(found) == expected


@reproducible
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(40, 90))
def test_no_pack_costs_more_than_it_may(lengths: list[int], max_cost: int) -> None:
    """A cap on the cost is kept like a cap on tokens."""
    costs = np.array(lengths, np.float64) / 10
    packed = balance(lengths, costs, max_tokens=10**6, max_cost=max_cost / 10)
    check_packed(packed, lengths, max_cost)


def test_a_sample_that_costs_too_much_is_named() -> None:
    """One that exceeds the cap alone is refused by position and cost, or has its own pack."""
    costs = np.array([1.0, 2.5, 1.0])
    with pytest.raises(TooLongError, match=r"sample 1 has 2.5 cost, a pack holds 2.0; raise max_c"):
        balance([1, 1, 1], costs, max_tokens=8, max_cost=2.0)
    packed = balance([1, 1, 1], costs, max_tokens=8, max_cost=2.0, too_long="own-pack")
    assert members(packed) == [[0, 2], [1]]
    with pytest.raises(ValueError, match="max_cost is 0; expected a number above 0"):
        balance([1, 1, 1], costs, max_tokens=8, max_cost=0)
