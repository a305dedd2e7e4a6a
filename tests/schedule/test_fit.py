"""Costs fitted to measured times, and the alarm when they no longer hold."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from flowengine.schedule import Cost, Drift, RunningFit, fit_cost, model_cost

TRUE = Cost(linear=2e-6, quadratic=1e-9, constant=3e-4)

Lengths = NDArray[np.float64]


def packs(count: int, *, seed: int) -> list[Lengths]:
    """Packs of up to 20 samples of heavy-tailed lengths."""
    draw = np.random.default_rng(seed)
    counts = draw.integers(1, 20, count)
    return [np.clip(draw.lognormal(6, 1, each), 8, 8192).round() for each in counts.tolist()]


def seconds(lengths: Lengths, cost: Cost) -> float:
    return float((cost.constant + lengths * (cost.linear + cost.quadratic * lengths)).sum())


def test_exact_times_give_the_coefficients() -> None:
    """Times that follow the formula give its coefficients back, with no residual."""
    measured = packs(50, seed=0)
    fit = fit_cost(measured, [seconds(pack, TRUE) for pack in measured])
    found = (fit.cost.linear, fit.cost.quadratic, fit.cost.constant)
    assert found == pytest.approx((TRUE.linear, TRUE.quadratic, TRUE.constant), rel=1e-6)
    assert fit.residual < 1e-9
    assert fit.packs == 50


def test_residual_is_the_noise() -> None:
    """Noise of 5 % of the mean time shows as a residual of about 5 %."""
    measured = packs(400, seed=1)
    times = np.array([seconds(pack, TRUE) for pack in measured])
    noise = np.random.default_rng(2).normal(0, 0.05 * times.mean(), 400)
    fit = fit_cost(measured, np.maximum(times + noise, 1e-6))
    assert fit.residual == pytest.approx(0.05, rel=0.2)


def test_no_coefficient_is_negative() -> None:
    """Where plain least squares would subtract a cost per sample, the fit leaves that out."""
    measured = packs(50, seed=3)
    times = [seconds(pack, Cost(linear=2e-6)) - 1e-5 * len(pack) for pack in measured]
    fit = fit_cost(measured, times)
    assert fit.cost.constant == 0
    assert fit.cost.linear > 0
    assert fit.cost.quadratic >= 0


def test_running_fit_warms_up_and_holds() -> None:
    """There is no fit before `recent` packs, and no alarm while nothing changes."""
    running = RunningFit(window=64, recent=16)
    for number, pack in enumerate(packs(200, seed=4)):
        assert (running.fit is None) == (number < 16)
        assert running.observe(pack, seconds(pack, TRUE)) is None
    assert running.fit is not None
    assert running.fit.packs == 64


def test_running_fit_tells_of_drift_and_follows() -> None:
    """Packs that take half as long again give one alarm, after which the new cost holds."""
    slower = Cost(linear=3e-6, quadratic=1.5e-9, constant=4.5e-4)
    running = RunningFit(window=64, recent=16)
    alarms: list[tuple[int, Drift]] = []
    for number, pack in enumerate(packs(300, seed=5)):
        drift = running.observe(pack, seconds(pack, TRUE if number < 150 else slower))
        if drift is not None:
            alarms.append((number, drift))
    ((number, drift),) = alarms
    assert 150 < number < 150 + 2 * 16
    assert drift.error == pytest.approx(0.5, abs=0.01)
    assert drift.before.cost.linear == pytest.approx(TRUE.linear, rel=1e-3)
    assert running.fit is not None
    assert running.fit.cost.linear == pytest.approx(slower.linear, rel=1e-3)


def test_model_cost_counts_the_known_formula() -> None:
    """A layer with hidden = 4 width and two matrices takes 6 * 12 w**2 FLOPs per token to train,
    and causal attention 6 w per pair of tokens."""
    cost = model_cost(
        layers=2, width=64, heads=4, hidden=256, vocabulary=100, flops_per_s=1e9, gated=False
    )
    assert cost.linear == pytest.approx(6 * (2 * 12 * 64**2 + 64 * 100) / 1e9)
    assert cost.quadratic == pytest.approx(2 * 6 * 64 / 1e9)


def test_model_cost_of_grouped_queries() -> None:
    """Fewer heads of keys and values mean smaller matrices; a mask that hides nothing, double."""
    shape = partial(
        model_cost, layers=1, width=64, heads=4, hidden=256, vocabulary=1, flops_per_s=1.0
    )
    full, grouped = shape(), shape(kv_heads=1)
    assert full.linear - grouped.linear == 6 * 2 * 64 * 64 * 3 / 4
    assert shape(causal=False).quadratic == 2 * full.quadratic


def test_wrong_measurements_are_refused() -> None:
    """What no fit can use is refused with what was found."""
    with pytest.raises(ValueError, match="for 2 packs; expected one number above 0 per pack"):
        fit_cost([[1], [2]], [1.0])
    with pytest.raises(ValueError, match="7 packs were measured; expected at least 8"):
        fit_cost([[1]] * 7, np.ones(7))
    with pytest.raises(ValueError, match=r"lengths have shape \(0,\); expected at least one"):
        fit_cost([[]] * 8, np.ones(8))
    with pytest.raises(ValueError, match=r"a pack took 0\.0 s; expected a number above 0"):
        RunningFit().observe([1], 0.0)
    with pytest.raises(ValueError, match="recent is 4 and window is 256; expected at least 8"):
        RunningFit(recent=4)
    with pytest.raises(ValueError, match="tolerance is 0; expected a number above 0"):
        RunningFit(tolerance=0)
    with pytest.raises(ValueError, match="heads is 0; expected at least 1"):
        model_cost(layers=1, width=1, heads=0, hidden=1, vocabulary=1, flops_per_s=1.0)
    with pytest.raises(ValueError, match="flops_per_s is 0; expected a number above 0"):
        model_cost(layers=1, width=1, heads=1, hidden=1, vocabulary=1, flops_per_s=0)
