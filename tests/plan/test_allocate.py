"""The allocator: exact, with every encoder held against its own edge."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowengine.errors import PlanError
from flowengine.plan import Candidate, Choice, Parallel, allocate, make_choice


def candidate(rate: float, devices: int) -> Candidate:
    return Candidate(Parallel(devices), rate)


def brute_force(
    objective: list[Candidate], encoders: list[list[Candidate]], devices: int
) -> Choice | None:
    """The best of all choices, by looking at all of them."""
    every = [make_choice(first, rest) for first, *rest in product(objective, *encoders)]
    fitting = [choice for choice in every if choice.devices <= devices]
    return min(fitting, key=rank, default=None)


def rank(choice: Choice) -> tuple[float, float, int]:
    return (-choice.rate, choice.mismatch, choice.devices)


candidates = st.lists(
    st.builds(candidate, st.integers(1, 6).map(float), st.integers(1, 5)), min_size=1, max_size=5
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(candidates, st.lists(candidates, max_size=3), st.integers(1, 14))
def test_choice_is_that_of_brute_force(
    objective: list[Candidate], encoders: list[list[Candidate]], devices: int
) -> None:
    """No choice within the devices is faster, better matched or smaller than the allocator's."""
    best = brute_force(objective, encoders, devices)
    if best is None:
        with pytest.raises(PlanError, match="give more devices"):
            allocate(objective, encoders, devices=devices)
        return
    assert rank(allocate(objective, encoders, devices=devices)) == rank(best)


def test_one_modality_does_not_hide_another() -> None:
    """An encoder that lacks is given devices, however much another one has to spare."""
    vision = [candidate(1.0, 1), candidate(4.0, 4)]
    audio = [candidate(100.0, 1)]
    choice = allocate([candidate(4.0, 8)], [vision, audio], devices=16)
    assert choice.encoders[0].rate == 4.0
    assert choice.rate == 4.0


def test_equal_rates_go_to_the_better_match_then_to_fewer_devices() -> None:
    """Where the objective is the bottleneck, the encoder is no faster than it needs to be."""
    encoder = [candidate(9.0, 1), candidate(5.0, 3), candidate(5.0, 2)]
    choice = allocate([candidate(4.0, 8)], [encoder], devices=16)
    assert (choice.encoders[0].rate, choice.encoders[0].devices) == (5.0, 2)


def test_a_stage_without_candidates_is_refused() -> None:
    """Every stage needs at least one candidate."""
    with pytest.raises(PlanError, match="no candidate"):
        allocate([candidate(1.0, 1)], [[]], devices=4)
