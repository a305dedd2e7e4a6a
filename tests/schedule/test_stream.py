"""Packs of a stream: complete, within the limit, full, soon, and always the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowengine.schedule import StreamPacker, TooLong, TooLongError, warm

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
