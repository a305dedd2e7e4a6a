"""What packs are measured to cost: observed always, used where the packer asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fakes import small_graph
from running import run_graph

from flowengine import Graph, launch
from flowengine.graph import Credits
from flowengine.operators.packing import CostPacker
from flowengine.runtime.cost_watch import CostWatch
from flowengine.runtime.events import CostDrifted, CostFitted
from flowengine.runtime.plans import Plans


def graph_with(packer: CostPacker, *, steps: int = 24) -> Graph:
    """A small graph with this packer, whose source is two steps ahead at most."""
    graph = small_graph(steps=steps, dtype="float64")
    graph.stage("packer").what = packer
    graph.stage("encoder").credits = Credits(items=16)
    return graph


def draw_packs(num_packs: int, *, seconds_per_token: float) -> list[tuple[list[int], float]]:
    draw = np.random.default_rng(num_packs)
    packs = [draw.integers(10, 500, size=8).tolist() for _ in range(num_packs)]
    return [(lengths, seconds_per_token * sum(lengths) + 1e-3) for lengths in packs]


def test_a_fit_is_told_and_its_end_too() -> None:
    """Once enough packs were timed there is a fit; when packs take longer there is an alarm, and a
    new fit after as many packs as before the first."""
    told: list[CostFitted | CostDrifted] = []
    watch = CostWatch(told.append, lambda: 2.5)
    assert not watch.add(1, draw_packs(31, seconds_per_token=1e-5))
    assert watch.add(2, draw_packs(1, seconds_per_token=1e-5))
    assert not watch.add(3, draw_packs(40, seconds_per_token=2e-5))
    assert watch.add(4, draw_packs(33, seconds_per_token=2e-5))
    first, drift, second = told
    assert isinstance(first, CostFitted)
    assert first.linear == pytest.approx(1e-5, rel=0.01)
    assert first.residual < 0.01
    assert (first.step, first.wall_s, first.packs) == (2, 2.5, 32)
    assert isinstance(drift, CostDrifted)
    assert drift.step == 3
    assert drift.error > 0.5
    assert isinstance(second, CostFitted)
    assert second.linear == pytest.approx(2e-5, rel=0.01)


def test_a_run_reports_what_packs_cost(tmp_path: Path) -> None:
    """The report, the page and the metrics hold the measured cost; plans do not depend on it."""
    graph = graph_with(CostPacker(max_tokens=32, min_packs=2))
    report = launch.run(graph, runtime="inline", run_dir=tmp_path / "run")
    last = report["cost"]["last"]
    assert report["cost"]["fits"] >= 1
    assert min(last["linear"], last["quadratic"], last["constant"]) >= 0
    assert 0 <= last["residual"] < 10
    assert "the residual over" in (tmp_path / "run" / "report.html").read_text()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert sum(event["event"] == "cost_fitted" for event in events) == report["cost"]["fits"]
    assert all(event["cost"] is None for event in events if event["event"] == "step")


def test_plans_may_follow_what_was_measured(tmp_path: Path) -> None:
    """With cost="measured" later steps are planned with the fit, which is recorded; the losses stay
    those of any other packing."""
    plain = run_graph(small_graph(steps=24, dtype="float64"), tmp_path / "plain")
    graph = graph_with(CostPacker(max_tokens=32, min_packs=2, cost="measured"))
    ran = run_graph(graph, tmp_path / "measured")
    assert ran.steps[0].cost is None
    assert ran.steps[-1].cost is not None
    assert set(ran.steps[-1].cost) == {"linear", "quadratic", "constant"}
    assert ran.losses == pytest.approx(plain.losses, rel=1e-9)


def test_a_resumed_run_plans_with_the_recorded_cost(tmp_path: Path) -> None:
    """Behind a checkpoint, the cost in force is the recorded one."""

    def measured(steps: int) -> Graph:
        graph = graph_with(CostPacker(max_tokens=32, min_packs=2, cost="measured"), steps=steps)
        graph.checkpoint(every=24)
        return graph

    first = run_graph(measured(24), tmp_path / "first")
    resumed = run_graph(measured(25), tmp_path / "resumed", resume=tmp_path / "first")
    assert first.steps[-1].cost is not None
    assert [step.cost for step in resumed.steps] == [first.steps[-1].cost]


def test_plans_of_steps_ahead_are_kept() -> None:
    """A checkpoint holds the costs of steps that were planned and not trained; later steps take the
    newest."""
    plans = Plans({})
    for step, cost in enumerate([None, [1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [3.0, 0.0, 0.0]]):
        plans.add(step, cost, [10 * step])
    assert plans.behind(0) == {
        "costs": {"1": [1.0, 0.0, 0.0], "2": [2.0, 0.0, 0.0], "3": [3.0, 0.0, 0.0]},
        "deferred": [],
    }
    kept = plans.behind(3)
    assert kept == {
        "costs": {"2": [2.0, 0.0, 0.0], "3": [3.0, 0.0, 0.0]},
        "deferred": [20],
    }
    again = Plans(json.loads(json.dumps(kept)))
    assert again.deferred == (20,)
    assert again.cost_of(3, [9.0, 0.0, 0.0]) == [3.0, 0.0, 0.0]
    assert again.cost_of(4, None) == [3.0, 0.0, 0.0]
    assert again.cost_of(4, [9.0, 0.0, 0.0]) == [9.0, 0.0, 0.0]
    assert Plans({}).cost_of(0, None) is None
