"""Gangs compute what one process computes, whatever the meshes; and their checkpoints fit any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import small_graph
from reference import train_plainly
from running import run_graph
from test_deaths import kill
from test_exactness import TOLERANCE, assert_same
from torch import Tensor

from flowengine import Credits, Gang, Graph, check
from flowengine.api import Context
from flowengine.errors import GraphError, StageError
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker
from flowengine.operators.vision import VisionEncoder
from flowengine.operators.vision.transformer import Patches
from flowengine.runtime.events import Event, StepDone

slow = pytest.mark.slow


class FailingEncoder(VisionEncoder):
    """Fails in the second data rank."""

    def open(self, context: Context) -> None:
        self._way = context.replica

    def batch(self, media: Sequence[Tensor]) -> Patches:
        if self._way == 1:
            raise ValueError("no more pictures")
        return super().batch(media)


class Planless(LanguageModel):
    """Does not say how it could be shared."""

    def tensor_plan(self) -> dict[str, Any]:
        return {}


MESHES = [
    {"gang": 2},
    {"model_gang": 2},
    {"model_gang": Gang(tensor=2)},
    {"gang": Gang(tensor=2), "model_gang": 2},
]


@slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_gang_trains_as_one_process(mesh: dict[str, Any], tmp_path: Path) -> None:
    """Losses of every step and the final weights agree with the plain loop in fp32."""
    graph = small_graph(steps=6, **mesh)
    ran = run_graph(graph, tmp_path, runtime="local")
    assert_same(ran, train_plainly(graph), tolerance=TOLERANCE["float32"])


@slow
def test_two_dimensions_at_once_train_as_one_process(tmp_path: Path) -> None:
    """Weights sharded over data ranks, of layers shared by tensor ranks, agree in fp64."""
    graph = small_graph(steps=3, dtype="float64", model_gang=Gang(data=2, tensor=2))
    ran = run_graph(graph, tmp_path, runtime="local")
    assert_same(ran, train_plainly(graph), tolerance=TOLERANCE["float64"])


@slow
@pytest.mark.parametrize(
    "mesh", [{"gang": 2, "activations": "recompute"}, {"gang": 3, "model_gang": 2}], ids=str
)
def test_ranks_without_pictures_or_packs_keep_up(mesh: dict[str, Any], tmp_path: Path) -> None:
    """With one sample per pack every third pack is text alone, and the last slot of a step is not
    full: losses agree in fp64, and held-out samples are all answered."""
    setting: dict[str, Any] = {"samples": 5, "min_packs": 5, "dtype": "float64", "steps": 3}
    graph = small_graph(**setting, **mesh, evaluate=4)
    ran = run_graph(graph, tmp_path, runtime="local")
    assert {step.packs for step in ran.steps} == {5}
    assert_same(ran, train_plainly(graph), tolerance=TOLERANCE["float64"])
    (report,) = ran.reports
    (alone,) = run_graph(small_graph(**setting, evaluate=4), tmp_path / "alone").reports
    assert report.value == alone.value


def kept(steps: int, **mesh: Any) -> Graph:
    graph = small_graph(steps=steps, dtype="float64", **mesh)
    graph.checkpoint(every=2, keep_last=9)
    return graph


@slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"gang": 2, "model_gang": Gang(tensor=2)}, {}),
        ({}, {"gang": 2, "model_gang": Gang(tensor=2)}),
    ],
    ids=str,
)
def test_a_checkpoint_fits_any_mesh(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    """Saved with one gang and resumed with another, training goes on as if it had never stopped."""
    run_graph(kept(3, **before), tmp_path / "one", runtime="local")
    ran = run_graph(kept(6, **after), tmp_path / "two", runtime="local", resume=tmp_path / "one")
    plain = train_plainly(small_graph(steps=6, dtype="float64"))
    assert ran.losses == pytest.approx(plain.losses[3:], rel=TOLERANCE["float64"], abs=0)


@slow
def test_a_rank_that_dies_takes_its_gang_back_to_the_checkpoint(tmp_path: Path) -> None:
    """The other ranks do not wait for it in a collective, and the run ends as if undisturbed."""
    graph = kept(8, gang=2, model_gang=2)
    struck: list[int] = []

    def strike(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 4 and not struck:
            struck.append(event.step)
            kill("encoder[1]")

    ran = run_graph(graph, tmp_path, runtime="local", max_restarts=1, observe=strike)
    assert len(ran.restarts) == 1
    assert "'encoder[1]'" in ran.restarts[0].reason
    plain = train_plainly(small_graph(steps=8, dtype="float64"))
    assert ran.losses == pytest.approx(plain.losses, rel=TOLERANCE["float64"], abs=0)
    assert not list(tmp_path.glob(".gangs-*"))


@slow
def test_an_error_of_one_rank_is_told_as_its_own(tmp_path: Path) -> None:
    """Not the closed connection that its peers see, but what the rank said."""
    graph = small_graph(gang=2)
    graph.stage("encoder").what = FailingEncoder(width=16, depth=1, heads=2, output=12)
    with pytest.raises(StageError, match=r"stage 'encoder\[1\]'.*no more pictures"):
        run_graph(graph, tmp_path, runtime="local")


def test_inline_a_gang_is_one_process(tmp_path: Path) -> None:
    """The graph runs unchanged in one process, and computes the same as without gangs."""
    ran = run_graph(small_graph(gang=2, model_gang=Gang(data=2, tensor=2)), tmp_path / "one")
    assert ran.losses == run_graph(small_graph(), tmp_path / "two").losses


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"gang": 2, "replicas": 2}, "has replicas=2 and gang=2 x 1; expected one of them"),
        ({"gang": 0}, r"gang data is 0; expected a whole number of at least 1"),
        ({"gang": 2, "staleness": 1}, "has gang=2 x 1 and staleness=1; older weights are not kept"),
        ({"model_gang": 2, "window": 1}, "window=1, but the objective's data ranks take as many"),
        (
            {"model_gang": 2, "capacity": "8 KiB"},
            "2 packs of 32 tokens, which a gang takes at once",
        ),
    ],
    ids=str,
)
def test_what_a_gang_cannot_be_is_refused(setting: dict[str, Any], message: str) -> None:
    """Before anything starts, with what to do instead."""
    with pytest.raises(GraphError, match=message):
        check(small_graph(**setting))


def test_a_gang_needs_weights_and_a_plan_for_its_tensor_ranks() -> None:
    """Other stages, and operators without a plan, are named."""
    graph = small_graph(model_gang=Gang(tensor=2))
    graph.stage("packer").gang = Gang(data=2)
    graph.stage("model").what = Planless(vocabulary=23, width=12, depth=1, heads=2, groups=1)
    with pytest.raises(GraphError) as refusal:
        check(graph)
    assert "stage 'packer'" in str(refusal.value)
    assert "has gang=2 x 1 and no weights" in str(refusal.value)
    assert "has gang=1 x 2, but Planless has no tensor_plan()" in str(refusal.value)


@slow
def test_a_slot_that_a_channel_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Rather than that its ranks wait for each other."""
    graph = small_graph(gang=2, min_packs=4)
    graph.stage("packer").credits = Credits(items=3)
    with pytest.raises(StageError, match=r"take 2 packs at once, of \d+ samples .*holds 3 rows"):
        run_graph(graph, tmp_path, runtime="local")


def test_a_gang_needs_packs_that_are_planned() -> None:
    """Its ranks could not tell how many packs there are to wait for."""
    graph = small_graph(model_gang=2)
    graph.stage("packer").what = CostPacker(max_tokens=32, when="ready")
    with pytest.raises(GraphError, match="'packer' packs what is ready, and a gang begins a slot"):
        check(graph)
