"""Packs of a stream: complete, within the limit, full, soon, and always the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowengine.schedule import Outliers, StreamPacker, TooLong, TooLongError, warm

reproducible = settings(derandomize=True, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    warm()


def run(lengths: list[int], *, max_tokens: int, window: int) -> list[tuple[int, list[int]]]:
    """Every pack with the number of samples that had arrived when it left."""
    packer = StreamPacker(max_tokens=max_tokens, window=window)
    packs = []
    for number, length in enumerate(lengths):
        packs += [(number + 1, pack) for pack in packer.push(number, length)]
    return packs + [(len(lengths), pack) for pack in packer.flush()]


def drawn(num_samples: int, *, seed: int) -> list[int]:
    """Heavy-tailed lengths: a median of 400, at most 8,192."""
    lengths = np.random.default_rng(seed).lognormal(np.log(400), 1.1, num_samples)
    return [int(length) for length in np.clip(lengths, 8, 8192)]


@reproducible
@given(st.lists(st.integers(1, 40), max_size=120), st.integers(40, 90), st.integers(1, 20))
def test_every_sample_is_packed_once(lengths: list[int], max_tokens: int, window: int) -> None:
    """Pushed samples come out in exactly one pack, none of which exceeds the limit."""
    packs = [pack for _, pack in run(lengths, max_tokens=max_tokens, window=window)]
    assert sorted(number for pack in packs for number in pack) == list(range(len(lengths)))
    assert all(pack and sum(lengths[number] for number in pack) <= max_tokens for pack in packs)


@reproducible
@given(st.lists(st.integers(1, 40), max_size=120), st.integers(40, 90), st.integers(1, 20))
def test_pack_leaves_nothing_that_fits(lengths: list[int], max_tokens: int, window: int) -> None:
    """No sample that waits when a pack leaves would still have fitted into it."""
    gone: set[int] = set()
    for arrived, pack in run(lengths, max_tokens=max_tokens, window=window):
        gone |= set(pack)
        room = max_tokens - sum(lengths[number] for number in pack)
        waiting = [lengths[number] for number in range(arrived) if number not in gone]
        assert not waiting or min(waiting) > room


@pytest.mark.parametrize("window", [1, 16, 64])
def test_waiting_is_bounded(window: int) -> None:
    """No sample waits for more than five windows, and no more wait than the window holds, once a
    window holds a pack."""
    lengths = drawn(5000, seed=1)
    waits = [
        arrived - 1 - number
        for arrived, pack in run(lengths, max_tokens=8192, window=window)
        for number in pack
    ]
    assert max(waits) <= 5 * max(window, 32)


def test_a_window_fills_packs() -> None:
    """With 64 samples to choose from, packs before the last flush are 99.9 % full."""
    lengths = drawn(5000, seed=2)
    packs = [pack for arrived, pack in run(lengths, max_tokens=16384, window=64) if arrived < 5000]
    filled = sum(lengths[number] for pack in packs for number in pack)
    assert filled / (16384 * len(packs)) > 0.999


def test_small_samples_wait_until_they_fill_a_pack() -> None:
    """A full window that does not fill a pack keeps waiting."""
    packer = StreamPacker(max_tokens=100, window=4)
    assert [packer.push(number, 10) for number in range(9)] == [[]] * 9
    assert len(packer) == 9
    assert packer.push(9, 10) == [list(range(10))]
    assert len(packer) == 0


def test_ids_are_the_users() -> None:
    """Packs hold the ids that were pushed, whatever numbers those are."""
    packer = StreamPacker(max_tokens=10, window=2)
    assert packer.push(4711, 6) == []
    assert packer.push(-3, 6) == [[4711]]
    assert packer.flush() == [[-3]]
    assert packer.flush() == []


@pytest.mark.parametrize(
    ("too_long", "packs", "dead"), [("own-pack", [[7]], []), ("dead-letter", [], [(7, 11)])]
)
def test_longer_than_a_pack(
    too_long: TooLong, packs: list[list[int]], dead: list[tuple[int, int]]
) -> None:
    """A longer sample is at once a pack, or a dead letter, and never waits."""
    packer = StreamPacker(max_tokens=10, window=4, too_long=too_long)
    assert packer.push(7, 11) == packs
    assert packer.dead_letters == dead
    assert len(packer) == 0


def test_longer_than_a_pack_is_an_error() -> None:
    """Unless said otherwise, a longer sample is refused by its id."""
    packer = StreamPacker(max_tokens=10, window=4)
    with pytest.raises(TooLongError, match="sample 7 has 11 tokens, a pack holds 10"):
        packer.push(7, 11)


def test_wrong_arguments_are_refused() -> None:
    """What would never fill a pack is refused by name and value."""
    with pytest.raises(ValueError, match="max_tokens is 0; expected at least 1"):
        StreamPacker(max_tokens=0, window=4)
    with pytest.raises(ValueError, match="window is 0; expected at least 1"):
        StreamPacker(max_tokens=8, window=0)
    with pytest.raises(ValueError, match='too_long is "drop"; expected one of "error"'):
        StreamPacker(max_tokens=8, window=4, too_long="drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sample 3 has length 0; expected at least 1"):
        StreamPacker(max_tokens=8, window=4).push(3, 0)


def test_pushing_many_is_pushing_one_by_one() -> None:
    """The packs of a column are those of its samples, one after the other."""
    lengths = drawn(500, seed=3)
    packer = StreamPacker(max_tokens=8192, window=16)
    packs = packer.push_many(range(500), lengths) + packer.flush()
    assert packs == [pack for _, pack in run(lengths, max_tokens=8192, window=16)]


def test_a_flushed_packer_begins_anew() -> None:
    """After a flush, also of few small samples, the next samples are packed as in a new one."""
    packer = StreamPacker(max_tokens=100, window=4)
    for number in range(6):
        packer.push(number, 10)
    assert packer.flush() == [list(range(6))]
    assert [packer.push(number, 50) for number in range(4)] == [[], [], [], [[0, 1]]]


sized = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), max_size=80)


@reproducible
@given(sized, st.integers(40, 90), st.integers(5, 12), st.integers(1, 20))
def test_all_limits_are_kept(
    samples: list[tuple[int, int]], max_tokens: int, most_images: int, window: int
) -> None:
    """No pack exceeds any of its limits, and every sample is packed once."""
    packer = StreamPacker(max_tokens=max_tokens, window=window, limits={"images": most_images})
    packs: list[list[int]] = []
    for number, (length, images) in enumerate(samples):
        packs += packer.push(number, length, {"images": images, "pixels": 10**9})
    packs += packer.flush()
    assert len(packer) == 0
    assert sorted(number for pack in packs for number in pack) == list(range(len(samples)))
    for pack in packs:
        assert pack == sorted(pack)
        assert sum(samples[number][0] for number in pack) <= max_tokens
        assert sum(samples[number][1] for number in pack) <= most_images


def test_a_second_limit_makes_packs_full() -> None:
    """A window that reaches another limit gives packs, however few tokens it has."""
    packer = StreamPacker(max_tokens=10**6, window=4, limits={"images": 4})
    assert [packer.push(number, 1, {"images": 2}) for number in range(4)][-1] == [[0, 1]]
    assert packer.flush() == [[2, 3]]


def test_packs_with_several_limits_are_full_too() -> None:
    """With 64 samples to choose from, a limit that seldom binds costs no more than 0.2 %."""
    lengths = drawn(3000, seed=2)
    packer = StreamPacker(max_tokens=16384, window=64, limits={"images": 40})
    packs = []
    for number, length in enumerate(lengths):
        packs += packer.push(number, length, {"images": 1})
    filled = sum(lengths[number] for pack in packs for number in pack)
    assert filled / (16384 * len(packs)) > 0.998


def test_outliers_go_together() -> None:
    """Long samples wait until so many are there, and are then in packs that follow each other."""
    outliers = Outliers(above=60, together=2, delay=100)
    packer = StreamPacker(max_tokens=100, window=2, outliers=outliers)
    packs = []
    for number, length in enumerate([90, 50, 50, 50, 50, 80, 50, 50, 20, 10]):
        packs += packer.push(number, length)
    packs += packer.flush()
    places = [place for place, pack in enumerate(packs) if {0, 5} & set(pack)]
    assert places[0] > 0
    assert places[1] == places[0] + 1


@pytest.mark.parametrize("delay", [1, 3, 10])
def test_outliers_wait_no_longer_than_their_delay(delay: int) -> None:
    """A long sample that stays alone is packed once so many packs have left, and those in front."""
    outliers = Outliers(above=60, together=9, delay=delay)
    packer = StreamPacker(max_tokens=100, window=4, outliers=outliers)
    packs = packer.push(0, 90)
    for number in range(1, 100):
        packs += packer.push(number, 30)
    (place,) = (place for place, pack in enumerate(packs) if 0 in pack)
    assert delay <= place <= delay + 1


def test_outliers_keep_the_other_rules() -> None:
    """Flushed outliers come out, also where packs have several limits; small ones are refused."""
    outliers = Outliers(above=60, together=9, delay=9)
    packer = StreamPacker(max_tokens=100, window=4, limits={"images": 1}, outliers=outliers)
    assert packer.push(7, 90, {"images": 1}) == []
    assert len(packer) == 1
    assert packer.flush() == [[7]]
    with pytest.raises(TooLongError, match="sample 8 has 2 images, a pack holds 1"):
        packer.push(8, 90, {"images": 2})
    with pytest.raises(ValueError, match="above 40 tokens; expected at least half of max_tokens"):
        StreamPacker(max_tokens=100, window=4, outliers=Outliers(above=40, together=2, delay=2))
    with pytest.raises(ValueError, match='limits\\["images"\\] is 0; expected at least 1'):
        StreamPacker(max_tokens=100, window=4, limits={"images": 0})
