"""Packs of what is encoded: the same mathematics as planned ones, and no way to get stuck."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes import small_graph
from running import run_graph
from test_modalities import train_two_plainly, two_encoder_graph

from flowengine import Graph, check, launch
from flowengine.api import Lengths, Packer
from flowengine.errors import GraphError
from flowengine.graph import Credits, find_problems
from flowengine.operators.packing import CostPacker
from flowengine.runtime import Runtime


def ready(graph: Graph, *, group: int = 2, window: int = 4, max_tokens: int = 32) -> Graph:
    """The graph with packs of what is ready."""
    packer = next(stage for stage in graph.stages if isinstance(stage.what, Packer))
    packer.what = CostPacker(max_tokens=max_tokens, when="ready", group=group, window=window)
    return graph


def least_capacity(graph: Graph) -> str:
    """The smallest pool that the checks let pass, in bytes."""
    graph.joins[0] = type(graph.joins[0])(**{**vars(graph.joins[0]), "capacity": 4096})
    (problem,) = [text for text in find_problems(graph) if "at least" in text][:1]
    return problem.split("to at least ")[1].split(" bytes")[0]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"activations": "recompute", "window": 1}])
def test_losses_are_those_of_planned_packs(
    replicas: int, settings: dict[str, object], tmp_path: Path
) -> None:
    """The sum over targets does not depend on who shares a pack."""
    plain = run_graph(small_graph(dtype="float64", evaluate=5), tmp_path / "planned")
    graph = small_graph(dtype="float64", evaluate=5, replicas=replicas, **settings)  # type: ignore[arg-type]
    ran = run_graph(ready(graph), tmp_path / "ready")
    assert ran.losses == pytest.approx(plain.losses, rel=1e-9)
    assert [step.targets for step in ran.steps] == [step.targets for step in plain.steps]
    assert ran.reports[-1].value == pytest.approx(plain.reports[-1].value)


@pytest.mark.parametrize("runtime", ["inline", pytest.param("local", marks=pytest.mark.slow)])
def test_two_encoders_and_two_models(runtime: Runtime, tmp_path: Path) -> None:
    """A sample waits for the features of all its modalities, in processes of their own, too."""
    expected = train_two_plainly(two_encoder_graph())
    graph = ready(two_encoder_graph())
    graph.stage("language_model").replicas = 2
    assert run_graph(graph, tmp_path, runtime=runtime).losses == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize(("group", "items", "window"), [(1, 2, None), (3, 3, 1), (8, 64, None)])
def test_it_never_stands_still(
    group: int, items: int, window: int | None, staleness: int, tmp_path: Path
) -> None:
    """In the smallest pool, with the fewest credits, and a packer that would like to wait for many
    samples, every step is trained."""
    graph = small_graph(samples=24, steps=3, replicas=2, staleness=staleness, window=window)
    ready(graph, group=group, window=1000, max_tokens=64)
    graph = small_graph(
        samples=24,
        steps=3,
        replicas=2,
        staleness=staleness,
        window=window,
        capacity=least_capacity(graph),
    )
    ready(graph, group=group, window=1000, max_tokens=64)
    for stage in graph.stages:
        stage.credits = Credits(items=items)
    assert [step.samples for step in run_graph(graph, tmp_path).steps] == [24, 24, 24]


def test_two_encoders_in_the_smallest_pool(tmp_path: Path) -> None:
    """An encoder that is held up by samples that lack another's features goes on with those."""
    graph = ready(two_encoder_graph(), group=3, window=1000)
    least = int(least_capacity(graph))
    graph.joins[0] = type(graph.joins[0])(**{**vars(graph.joins[0]), "capacity": least})
    check(graph)
    for stage in graph.stages:
        stage.credits = Credits(items=3)
    expected = train_two_plainly(two_encoder_graph())
    assert run_graph(graph, tmp_path).losses == pytest.approx(expected, rel=1e-9)


def test_packs_keep_their_limits_and_are_recorded(tmp_path: Path) -> None:
    """The record holds the packs as they were trained: each sample once, none too full."""
    graph = small_graph(samples=16, evaluate=5)
    packer = CostPacker(
        max_tokens=32, when="ready", window=4, group=3, max_rows={"image": 8}, max_cost=28.0
    )
    graph.stage("packer").what = packer
    report = launch.run(graph, runtime="inline", run_dir=tmp_path / "run")
    packs = pq.read_table(tmp_path / "run" / "packs.parquet").to_pylist()
    trained = [pack for pack in packs if not pack["held_out"]]
    assert sorted(s for pack in trained for s in pack["sample_ids"]) == list(range(64))
    assert max(pack["tokens"] for pack in packs) <= 28
    assert report["pool"]["packs"] == len(trained)
    assert report["targets"] == sum(pack["targets"] for pack in trained)


def test_it_resumes(tmp_path: Path) -> None:
    """Nothing waits in the packer at a step's end, so a checkpoint needs nothing of it."""
    whole = run_graph(ready(small_graph(steps=6)), tmp_path / "whole")
    stopped = ready(small_graph(steps=3))
    stopped.checkpoint()
    run_graph(stopped, tmp_path / "stopped")
    resumed = run_graph(
        ready(small_graph(steps=6)), tmp_path / "resumed", resume=tmp_path / "stopped"
    )
    assert resumed.losses == pytest.approx(whole.losses[3:], rel=1e-4)


class PlansOnly(Packer):
    """Cannot pack what is ready."""

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        return [[index] for index in range(len(lengths))]


def test_what_cannot_be_is_refused() -> None:
    """A packer without a stream, an unknown mode, a cost that only plans can follow."""
    graph = small_graph()
    graph.stage("packer").what = PlansOnly(max_tokens=32, when="ready")
    with pytest.raises(GraphError, match=r"when='ready', but PlansOnly does not define stream\(\)"):
        check(graph)
    graph.stage("packer").what = PlansOnly(max_tokens=32, when="later")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="when is 'later'; expected 'planned' or 'ready'"):
        check(graph)
    with pytest.raises(ValueError, match='expected when="planned"'):
        CostPacker(max_tokens=32, when="ready", cost="measured")
