"""Stages of several dtypes in one graph: what computes in which, and what is stepped on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import small_graph
from reference import PlainLoop, Trained
from running import run_graph
from torch import nn

from flowengine import Graph, check
from flowengine.api import Encoder, Objective
from flowengine.checkpoint import find_checkpoint, read_part
from flowengine.errors import GraphError
from flowengine.graph.dtype import DType
from flowengine.runtime.weights import Weights, build_module, cast
from flowengine.testing import verify


def mixed_graph(*, encoder: DType | None, model: DType | None, **settings: Any) -> Graph:
    graph = small_graph(**settings)
    for stage in graph.stages:
        if isinstance(stage.what, Encoder):
            stage.dtype = encoder
        elif isinstance(stage.what, Objective):
            stage.dtype = model
    return graph


class MixedLoop(PlainLoop):
    """The plain loop with modules in bfloat16 beside float32 ones that the optimizer steps on."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.masters = self.modules
        self.modules = [
            build_module(stage, seed=graph.seed, dtype=graph.dtype_of(stage))
            for stage in self.stages
        ]

    def pack_loss(self, indices: list[int]) -> torch.Tensor:
        self.move_gradients()
        return super().pack_loss(indices)

    def move_gradients(self) -> None:
        for master, module in zip(self.masters, self.modules, strict=True):
            for wide, narrow in zip(master.parameters(), module.parameters(), strict=True):
                if narrow.grad is not None:
                    gradient = narrow.grad.float()
                    wide.grad = gradient if wide.grad is None else wide.grad + gradient
                    narrow.grad = None

    def update(self, step: int) -> None:
        self.move_gradients()
        working, self.modules = self.modules, self.masters
        super().update(step)
        self.modules = working
        for master, module in zip(self.masters, self.modules, strict=True):
            module.load_state_dict(master.state_dict())

    def train(self, *, one_backward: bool) -> Trained:
        trained = super().train(one_backward=one_backward)
        named = zip(self.stages, self.masters, strict=True)
        return Trained(trained.losses, {s.name: dict(m.state_dict()) for s, m in named})


@pytest.mark.parametrize(
    ("encoder", "model"), [("bfloat16", None), (None, "bfloat16"), ("bfloat16", "bfloat16")]
)
def test_bfloat16_steps_on_float32_masters(
    encoder: DType | None, model: DType | None, tmp_path: Path
) -> None:
    """Losses and final weights are, to the bit, those of a plain loop that adds every pack's
    bfloat16 gradient to a float32 one, steps on float32 weights, and rounds them."""
    settings: dict[str, Any] = {"samples": 4, "min_packs": 4, "steps": 3}
    graph = mixed_graph(encoder=encoder, model=model, **settings)
    plain = MixedLoop(graph).train(one_backward=False)
    ran = run_graph(graph, tmp_path)
    assert ran.losses == plain.losses
    for stage, weights in plain.weights.items():
        for name, weight in weights.items():
            assert ran.weights[stage][name].dtype == torch.float32
            assert torch.equal(ran.weights[stage][name], weight), (stage, name)


def test_features_and_gradients_have_the_encoders_dtype(tmp_path: Path) -> None:
    """An encoder of half width puts half the bytes into the pool, for either way."""
    wide = run_graph(small_graph(steps=1), tmp_path / "wide").rows("encoder")
    graph = mixed_graph(encoder="bfloat16", model=None, steps=1)
    half = run_graph(graph, tmp_path / "half").rows("encoder")
    assert {row["dtype"] for row in half} == {"bfloat16"}
    assert {row["state"] for row in half} == {"gradient"}
    assert [2 * row["size_bytes"] for row in half] == [row["size_bytes"] for row in wide]


@pytest.mark.parametrize("setting", [{}, {"staleness": 1}, {"replicas": 2}], ids=str)
def test_a_resumed_run_has_its_masters_back(setting: dict[str, Any], tmp_path: Path) -> None:
    """Weights in bfloat16 are no state to go on from; the checkpoint has the float32 ones."""
    graph = mixed_graph(encoder="bfloat16", model="bfloat16", steps=4, **setting)
    graph.checkpoint(every=2)
    whole = run_graph(graph, tmp_path / "whole")
    half = tmp_path / "whole" / "checkpoints" / "step-00000002"
    again = run_graph(graph, tmp_path / "again", resume=half)
    assert again.losses == whole.losses[2:]
    for stage, weights in whole.weights.items():
        for name, weight in weights.items():
            assert torch.equal(again.weights[stage][name], weight), (stage, name)
    part = read_part(find_checkpoint(half), "encoder")
    dtypes = {name.partition("/")[0]: tensor.dtype for name, tensor in part.tensors.items()}
    assert dtypes["module"] == torch.bfloat16
    assert dtypes["master"] == dtypes["optimizer"] == torch.float32


def test_a_frozen_encoder_may_have_any_dtype(tmp_path: Path) -> None:
    """In float16 it has no masters, and its weights stay as they are."""
    graph = mixed_graph(encoder="float16", model=None, steps=2, freeze=True)
    ran = run_graph(graph, tmp_path)
    wanted = build_module(graph.stage("encoder"), seed=graph.seed, dtype="float16").state_dict()
    for name, weight in ran.weights["encoder"].items():
        assert torch.equal(weight, wanted[name]), name


def test_training_in_float16_is_refused() -> None:
    """Without a scaled loss its small gradients would vanish."""
    with pytest.raises(GraphError, match=r'trains in float16.*; pass dtype="bfloat16", or freeze'):
        check(mixed_graph(encoder="float16", model=None))
    graph = mixed_graph(encoder="int8", model=None)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"dtype is 'int8'; expected one of \['float64'"):
        check(graph)


def test_computed_buffers_are_not_rounded() -> None:
    """Rotary frequencies in bfloat16 would put distant positions in one place."""
    module = nn.Linear(2, 2)
    module.register_buffer("rates", torch.tensor([1.001]), persistent=False)
    module.register_buffer("mean", torch.tensor([1.001]))
    cast(module, "bfloat16")
    assert module.rates.dtype == torch.float32
    assert module.mean.dtype == module.weight.dtype == torch.bfloat16
    cast(module, "float64")
    assert module.rates.dtype == torch.float64


def test_masters_are_taken_before_rounding() -> None:
    """A master has the bits that bfloat16 has no room for."""
    stage = small_graph().stage("encoder")
    weights = Weights(stage, seed=0, dtype="bfloat16")
    exact = build_module(stage, seed=0, dtype="float32")
    for (name, parameter), master in zip(exact.named_parameters(), weights.parameters, strict=True):
        assert torch.equal(master, parameter), name
        assert torch.equal(weights.module.get_parameter(name), parameter.bfloat16())


def test_verify_compares_in_float32(tmp_path: Path) -> None:
    """A graph in bfloat16 is held against the plain model in the dtype where that means something;
    the user's graph stays as it is."""
    graph = mixed_graph(encoder="bfloat16", model="bfloat16")
    assert verify(graph, run_dir=tmp_path, runtime="inline").agrees
    assert graph.stage("encoder").dtype == "bfloat16"
