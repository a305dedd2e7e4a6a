"""Costs of samples and packs."""

from __future__ import annotations

import math

import pytest

from flowengine.api import Lengths
from flowengine.schedule import Cost, flowtrain_cost

TEXT = Lengths(tokens=10, targets=9)
PAGE = Lengths(tokens=20, targets=5, media={"image": 12})


def test_default_counts_tokens() -> None:
    """Without coefficients a pack costs its tokens."""
    assert Cost().of_pack([TEXT, PAGE]) == 30


def test_cost_sums_its_parts() -> None:
    """A pack costs a * sum(len^2) + b * sum(len) + c * n, and its rows."""
    cost = Cost(linear=2, quadratic=0.5, constant=100, media={"image": 3, "audio": 7})
    assert cost.of_samples([TEXT, PAGE]).tolist() == [20 + 50 + 100, 40 + 200 + 100 + 36]
    assert cost.of_pack([TEXT, PAGE]) == 546
    assert cost.of_pack([]) == 0


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_coefficients_are_numbers_of_at_least_0(value: float) -> None:
    """A coefficient that would break the order of costs is refused by name."""
    text = f"is {value}; expected a number of at least 0"
    with pytest.raises(ValueError, match=f"cost: linear {text}"):
        Cost(linear=value)
    with pytest.raises(ValueError, match=f"cost: quadratic {text}"):
        Cost(quadratic=value)
    with pytest.raises(ValueError, match=f"cost: constant {text}"):
        Cost(constant=value)
    with pytest.raises(ValueError, match=f"cost: image {text}"):
        Cost(media={"image": value})


def test_text_costs_something() -> None:
    """A cost of media alone is refused: it could not balance text."""
    with pytest.raises(ValueError, match="a sample of text costs nothing; set linear="):
        Cost(linear=0, media={"image": 1})


def test_flowtrain_cost() -> None:
    """The paper's formula: the fill, plus the square of the longest sample's part."""
    assert flowtrain_cost([10, 40, 30], max_tokens=80) == 1.0 + 0.25
