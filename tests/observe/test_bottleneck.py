"""Where the time went, and which stage is named for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowengine.observe.bottleneck import Shares, find_bottleneck, stage_shares, steady_stretches
from flowengine.observe.run_files import RunFiles


def stage(busy: float, wait: str = "packs") -> Shares:
    waits = {("starved", wait): 1 - busy}
    return Shares({"busy": busy, "starved": 1 - busy}, {"forward": busy}, waits)


def test_the_busiest_stage() -> None:
    """A stage that is clearly busier than all others is named, with who waits for what."""
    shares = {"eye": stage(0.9), "model": stage(0.4), "pages": stage(0.01, "credits")}
    verdict = find_bottleneck(shares, replicas={})
    assert verdict.stage == "eye"
    assert verdict.text == (
        "eye is the bottleneck: it is busy 90% of the time, while model is starved 60% of it, "
        "waiting for packs."
    )
    assert "'forward' (100% of it). replicas=2 divides it" in verdict.advice


def test_replicas_are_told() -> None:
    """Where there are replicas already, the advice is to have more."""
    verdict = find_bottleneck({"eye": stage(0.9), "model": stage(0.4)}, replicas={"eye": 3})
    assert "More than its 3 replicas" in verdict.advice


def test_two_busy_stages() -> None:
    """Two stages about as busy as each other: neither is called the bottleneck."""
    verdict = find_bottleneck({"eye": stage(0.9), "model": stage(0.85)}, replicas={})
    assert verdict.stage is None
    assert verdict.text == ("No stage stands out: eye is busy 90% of the time and model 85%.")


def test_nothing_recorded() -> None:
    """A run without steps has no bottleneck."""
    assert find_bottleneck({"eye": Shares()}, replicas={}).stage is None


def test_steady_stretches() -> None:
    """The first steps are left out, unless there are no others; gaps of what is kept part them."""
    assert steady_stretches({step: float(step) for step in range(6)}) == [(1.0, 5.0)]
    assert steady_stretches({0: 1.0, 1: 3.0}) == [(1.0, 3.0)]
    assert steady_stretches({}) == []
    ends = {step: float(step) for step in range(8)}
    assert steady_stretches(ends, breaks=[4.5]) == [(1.0, 4.0), (5.0, 7.0)]
    long = {step: float(step) for step in range(1600)}
    assert steady_stretches(long) == [(1.0, 1049.0), (1500.0, 1549.0)]


def test_shares_add_up(finished: Path) -> None:
    """A stage's shares are of all its time, and every stage of the graph has them."""
    shares = stage_shares(RunFiles(finished))
    assert list(shares) == ["source", "encoder", "packer", "model", "accuracy"]
    for name in ("encoder", "model"):
        assert sum(shares[name].share(s) for s in ("busy", "blocked", "starved")) == pytest.approx(
            1
        )
        assert sum(shares[name].work.values()) == pytest.approx(shares[name].seconds["busy"])
    assert {"forward", "backward"} <= shares["encoder"].work.keys()
