"""Whether a graph computes the gradients of the plain model: one process, sample by sample.

The graph runs its first steps as it will train, packed and in its processes, but its weights are
held fixed, and at the end each trained stage's weights file holds its gradient instead. The plain
model has the same weights and sees the same samples, unpacked: where the objective knows the whole
model (`Objective.whole`) it is that, else the graph's own operators on one sample at a time,
with one autograd graph from media to loss.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from flowengine.api import Encoder, Joined, Objective, Optimizer, Sample, Source, join_samples
from flowengine.graph import Graph, check
from flowengine.graph.description import StageSpec
from flowengine.graph.dtype import master_dtype
from flowengine.runtime import Runtime, execute
from flowengine.runtime.events import Event, RunDone, StepDone
from flowengine.runtime.weights import build_module

TOLERANCES = {"float32": 1e-5, "float64": 1e-10}
"""What packing and splitting may change: the order of sums."""


@dataclass(frozen=True, kw_only=True)
class KeepGradients(Optimizer):
    """Adds up the gradients of `steps` steps without moving a weight; then puts the sums in the
    weights' places."""

    steps: int
    lr: float = 0.0

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return _Keeping(list(parameters), steps=self.steps)


class _Keeping(torch.optim.Optimizer):
    def __init__(self, parameters: list[nn.Parameter], *, steps: int) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self._left = steps
        self._sums = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        parameters = [p for group in self.param_groups for p in group["params"]]
        self._left -= 1
        for parameter, total in zip(parameters, self._sums, strict=True):
            if parameter.grad is not None:
                total += parameter.grad
            if self._left == 0:
                parameter.copy_(total)


@dataclass(frozen=True)
class Comparison:
    """losses: of the graph and of the plain model, per step. differences: by stage and parameter,
    the largest of a gradient, relative to the largest entry of the plain model's. against: which
    plain model it was."""

    losses: list[tuple[float, float]]
    differences: dict[str, dict[str, float]]
    against: str
    tolerance: float

    @property
    def loss_difference(self) -> float:
        """The largest relative difference of a step's loss."""
        return max(abs(ours - plain) / abs(plain) for ours, plain in self.losses)

    @property
    def gradient_difference(self) -> float:
        """The largest relative difference of a parameter's gradient."""
        return max(max(found.values(), default=0.0) for found in self.differences.values())

    @property
    def agrees(self) -> bool:
        """Whether both are within the tolerance; never for a difference that is no number."""
        return self.loss_difference <= self.tolerance and self.gradient_difference <= self.tolerance


def verify(
    graph: Graph,
    *,
    run_dir: Path,
    steps: int = 1,
    runtime: Runtime = "local",
    tolerance: float | None = None,
) -> Comparison:
    """Runs the graph's first `steps` steps, and the plain model on the same samples.

    Both compute in the graph's dtype, or in float32 where it is a half one, and so do all stages:
    in bfloat16 no two ways to the same gradient are close.

    run_dir: empty or new; the run's files stay there. tolerance: None takes 1e-5 in fp32 and 1e-10
    in fp64. Raises GraphError for a graph that is refused, ValueError for one that trains nothing.
    """
    graph = _held_fixed(graph, steps)
    check(graph)
    run_dir.mkdir(parents=True, exist_ok=True)
    losses: list[float] = []
    files: dict[str, str] = {}

    def observe(event: Event) -> None:
        if isinstance(event, StepDone):
            losses.append(event.loss)
        elif isinstance(event, RunDone):
            files.update(event.weights)

    execute(graph, runtime=runtime, run_dir=run_dir, observe=observe)
    plain = _Plain(graph)
    plain_losses = [plain.run_step(step) for step in range(steps)]
    trained = [stage for stage in graph.stages if stage.trains]
    pairs = {
        stage.name: plain.paired(stage, _kept(run_dir / files[stage.name])) for stage in trained
    }
    return Comparison(
        losses=list(zip(losses, plain_losses, strict=True)),
        differences=_differences(pairs, eps=torch.finfo(getattr(torch, graph.dtype)).eps),
        against=plain.name,
        tolerance=TOLERANCES[graph.dtype] if tolerance is None else tolerance,
    )


def _held_fixed(graph: Graph, steps: int) -> Graph:
    if not any(stage.trains for stage in graph.stages):
        raise ValueError(f"{graph}: trains nothing; verify compares gradients")
    graph = copy.copy(graph)
    graph.steps, graph.clip_norm, graph.staleness, graph.evaluations = steps, None, 0, []
    keeping = KeepGradients(steps=steps)
    graph.stages = [
        replace(stage, optimizer=keeping if stage.trains else None, dtype=None)
        for stage in graph.stages
    ]
    graph.dtype = master_dtype(graph.dtype)
    return graph


def _kept(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file, those that are tied by each of their names."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
    return tensors | {name: tensors[kept] for name, kept in header.items() if kept in tensors}


def _differences(
    pairs: Mapping[str, Mapping[str, tuple[Tensor, Tensor]]], *, eps: float
) -> dict[str, dict[str, float]]:
    """Gradients that are both below the rounding of the largest of all count as zero."""
    plain = [pair[1] for named in pairs.values() for pair in named.values() if pair[1].numel()]
    least = eps * max(float(gradient.abs().max()) for gradient in plain)
    return {
        stage: {name: _difference(*pair, least) for name, pair in named.items()}
        for stage, named in pairs.items()
    }


def _difference(ours: Tensor, plain: Tensor, least: float) -> float:
    if not ours.numel():
        return 0.0
    largest = float(plain.abs().max())
    if largest <= least and float(ours.abs().max()) <= least:
        return 0.0
    return float((ours - plain).abs().max()) / max(largest, least)


class _Plain:
    """The plain model of a graph, and its gradients so far."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._source: Any = self._stage(Source).what
        self._encoders = [stage for stage in graph.stages if isinstance(stage.what, Encoder)]
        self._objective = self._stage(Objective)
        operator: Any = self._objective.what
        self._whole = operator.whole(getattr(torch, graph.dtype))
        self.name = "the graph's operators, sample by sample"
        if self._whole is not None:
            self.name = f"{type(self._whole.module).__name__}, sample by sample"
            self._modules = dict.fromkeys(
                (stage.name for stage in [*self._encoders, self._objective]), self._whole.module
            )
        else:
            self._modules = {
                stage.name: build_module(stage, seed=graph.seed, dtype=graph.dtype)
                for stage in [*self._encoders, self._objective]
            }

    def run_step(self, step: int) -> float:
        """Adds the step's gradients; its loss per target."""
        size, total = self._graph.step.samples, self._source.num_samples()
        indices = range(step * size, (step + 1) * size)
        places = [index if total is None else index % total for index in indices]
        targets = sum(self._source.lengths(place).targets for place in places)
        summed = 0.0
        for place in places:
            loss = self._loss(self._source.read(place))
            if loss.requires_grad:
                torch.autograd.backward(loss / targets)
            summed += float(loss.detach())
        return float(summed / targets)

    def paired(
        self, stage: StageSpec, found: Mapping[str, Tensor]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """The gradient found and the plain one of every parameter of the stage that trains."""
        module = self._modules[stage.name]
        mine = module
        if self._whole is not None:
            mine = build_module(stage, seed=self._graph.seed, dtype=self._graph.dtype)
        names = [name for name, parameter in mine.named_parameters() if parameter.requires_grad]
        parameters = {name: module.get_parameter(name) for name in names}
        return {
            name: (found[name], torch.zeros_like(p) if p.grad is None else p.grad)
            for name, p in parameters.items()
        }

    def _loss(self, sample: Sample) -> Tensor:
        if self._whole is not None:
            whole: Tensor = self._whole.loss(sample)
            return whole
        features = {}
        for stage in self._encoders:
            encoder: Any = stage.what
            items = sample.items(encoder.modality)
            if items:
                module = self._modules[stage.name]
                features[encoder.modality] = encoder.forward(module, encoder.batch(items))
        objective: Any = self._objective.what
        pack = replace(join_samples((0,), (Joined(sample, {}),)), features=features)
        loss: Tensor = objective.loss(self._modules[self._objective.name], pack)
        return loss

    def _stage(self, kind: type) -> StageSpec:
        return next(stage for stage in self._graph.stages if isinstance(stage.what, kind))
