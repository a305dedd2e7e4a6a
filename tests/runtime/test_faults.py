"""Seeded faults in whole runs: a short form of bench/bench_faults.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import KINDS, judge, plan, reference
from supervised import SOON_S, Outcome

pytestmark = pytest.mark.slow


def first_seed(kind: str, folder: Path) -> int:
    return next(seed for seed in range(1000) if plan(seed, folder)[1] == kind)


@pytest.fixture(scope="module")
def references() -> dict[str, Outcome]:
    """The runs in which nothing happened, each made once."""
    return {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_changes_nothing(kind: str, references: dict[str, Outcome], tmp_path: Path) -> None:
    """Losses, weights and samples are those of a run in which nothing happened, and nothing is
    left behind."""
    seed = first_seed(kind, tmp_path)
    name = plan(seed, tmp_path)[0]
    if name not in references:
        references[name] = reference(name)
    verdict = judge(seed, references)
    assert verdict.wrong == []
    assert all(told < SOON_S for told in verdict.told_s)


def test_seeds_repeat(tmp_path: Path) -> None:
    """A seed stands for the same faults every time."""
    assert [plan(seed, tmp_path) for seed in range(50)] == [
        plan(seed, tmp_path) for seed in range(50)
    ]
