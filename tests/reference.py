"""The plain loop: one process, one autograd graph from pixels to loss, gradients by one backward
per microbatch. What a graph at staleness 0 must compute."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from flowengine import Graph
from flowengine.api import Encoder, Joined, Objective, Packer, Source, join_samples
from flowengine.graph.description import StageSpec
from flowengine.runtime.weights import build_module


@dataclass
class Trained:
    """losses: per step, mean over targets. weights: of both modules, by stage and name."""

    losses: list[float]
    weights: dict[str, dict[str, Tensor]]


class PlainLoop:
    """Trains a graph's operators on its samples, without the graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.source: Any = self._stage(Source).what
        self.packer: Any = self._stage(Packer).what
        self.stages = [self._stage(Encoder), self._stage(Objective)]
        self.modules: list[nn.Module] = [
            build_module(stage, seed=graph.seed, dtype=graph.dtype) for stage in self.stages
        ]
        self.optimizers = {
            stage.name: stage.optimizer.build(module.parameters())
            for stage, module in zip(self.stages, self.modules, strict=True)
            if stage.trains and stage.optimizer is not None
        }

    def train(self, *, one_backward: bool) -> Trained:
        assert self.graph.steps is not None
        losses = [self.train_step(step, one_backward) for step in range(self.graph.steps)]
        named = zip(self.stages, self.modules, strict=True)
        return Trained(losses, {stage.name: dict(module.state_dict()) for stage, module in named})

    def train_step(self, step: int, one_backward: bool) -> float:
        size = self.graph.step.samples
        indices = range(step * size, (step + 1) * size)
        lengths = [self.source.lengths(index) for index in indices]
        targets = sum(length.targets for length in lengths)
        sums: list[Tensor] = []
        for members in self.packer.plan(lengths):
            sums.append(self.pack_loss([indices[member] for member in members]))
            if not one_backward:
                torch.autograd.backward(sums[-1] / targets)
        if one_backward:
            torch.autograd.backward(torch.stack(sums).sum() / targets)
        self.update(step)
        return math.fsum(float(value.detach()) for value in sums) / int(targets)

    def pack_loss(self, indices: list[int]) -> Tensor:
        encoder: Any = self.stages[0].what
        model: Any = self.stages[1].what
        samples = [self.source.read(index) for index in indices]
        media = [item for sample in samples for item in sample.items(encoder.modality)]
        features = {}
        if media:
            features[encoder.modality] = encoder.forward(self.modules[0], encoder.batch(media))
        pack = join_samples(tuple(indices), tuple(Joined(sample, {}) for sample in samples))
        loss: Tensor = model.loss(self.modules[1], replace(pack, features=features))
        return loss

    def update(self, step: int) -> None:
        trained = [s for s in zip(self.stages, self.modules, strict=True) if s[0].trains]
        if self.graph.clip_norm is not None:
            parameters = [p for _, module in trained for p in module.parameters()]
            nn.utils.clip_grad_norm_(parameters, self.graph.clip_norm)
        for stage, _ in trained:
            assert stage.optimizer is not None
            optimizer = self.optimizers[stage.name]
            for group in optimizer.param_groups:
                group["lr"] = stage.optimizer.lr * stage.optimizer.schedule.factor(step)
            optimizer.step()
            optimizer.zero_grad()

    def _stage(self, kind: type) -> StageSpec:
        return next(stage for stage in self.graph.stages if isinstance(stage.what, kind))


def train_plainly(graph: Graph, *, one_backward: bool = False) -> Trained:
    """Trains the graph's operators; with `one_backward`, by a single backward over the sum of all
    packs' losses instead of one per pack."""
    return PlainLoop(graph).train(one_backward=one_backward)
