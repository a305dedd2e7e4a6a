"""Graphs with no encoder, and with two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import VOCABULARY, MixedSamples
from running import run_graph
from torch import Tensor, nn

from flowengine import Graph, Step
from flowengine.api import (
    AdamW,
    Encoder,
    GradientReturn,
    Joined,
    Lengths,
    Sample,
    Source,
    join_samples,
)
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker
from flowengine.operators.vision import VisionEncoder
from flowengine.runtime import Runtime
from flowengine.runtime.weights import build_module

SERIES = VOCABULARY


class TextSamples(Source[Sample]):
    """Words alone."""

    def read(self, index: int) -> Sample:
        tokens = torch.arange(4 + index % 3)
        return Sample(tokens, torch.cat([torch.tensor([-100]), tokens[1:]]))


class SeriesEncoder(Encoder[nn.Linear, Tensor]):
    """Four values to a feature row."""

    modality = "series"

    def feature_shape(self) -> tuple[int, ...]:
        return (12,)

    def build(self) -> nn.Linear:
        return nn.Linear(4, 12)

    def batch(self, media: Sequence[Tensor]) -> Tensor:
        return torch.cat([series.view(-1, 4) for series in media])

    def forward(self, module: nn.Linear, batch: Tensor) -> Tensor:
        rows: Tensor = module(batch.to(module.weight.dtype))
        return rows


class TwoModalities(MixedSamples):
    """Mixed samples, every other of them with two rows of a series in front."""

    def lengths(self, index: int) -> Lengths:
        lengths = super().lengths(index)
        extra = 2 * (index % 2)
        media = {**lengths.media, "series": extra}
        return replace(lengths, tokens=lengths.tokens + extra, media=media)

    def read(self, index: int) -> Sample:
        sample = super().read(index)
        if index % 2 == 0:
            return sample
        return replace(
            sample,
            tokens=torch.cat([torch.tensor([SERIES, SERIES]), sample.tokens]),
            labels=torch.cat([torch.tensor([-100, -100]), sample.labels]),
            media={**sample.media, "series": torch.linspace(-1, index % 5, 8)},
        )


def two_encoder_graph() -> Graph:
    adam = AdamW(lr=3e-3)
    graph = Graph("two", step=Step(samples=8), steps=5, clip_norm=1.0, dtype="float64")
    samples = graph.add(TwoModalities())
    vision = graph.add(
        VisionEncoder(width=16, depth=1, heads=2, output=12), samples, optimizer=adam, replicas=2
    )
    series = graph.add(SeriesEncoder(), samples, optimizer=adam)
    pooled = graph.pool(samples, vision, series, capacity="16 MiB")
    packs = graph.add(CostPacker(max_tokens=32), pooled)
    language = LanguageModel(
        vocabulary=VOCABULARY + 1,
        width=12,
        depth=1,
        heads=2,
        groups=1,
        placeholders={"image": 0, "series": SERIES},
    )
    model = graph.add(language, packs, optimizer=adam)
    graph.feedback(GradientReturn(), model["gradients"], to=vision)
    graph.feedback(GradientReturn(), model["gradients"], to=series)
    return graph


def train_two_plainly(graph: Graph) -> list[float]:
    """The losses of the plain loop with two encoders."""
    operators: list[Any] = [stage.what for stage in graph.stages]
    source, vision, series, packer, model = operators
    stages = [graph.stages[index] for index in (1, 2, 4)]
    modules = [build_module(stage, seed=graph.seed, dtype=graph.dtype) for stage in stages]
    parameters = [p for module in modules for p in module.parameters()]
    optimizer = AdamW(lr=3e-3).build(parameters)
    losses = []
    for step in range(5):
        ids = range(8 * step, 8 * step + 8)
        lengths = [source.lengths(i) for i in ids]
        total = torch.zeros((), dtype=torch.float64)
        for members in packer.plan(lengths):
            samples = [source.read(ids[i]) for i in members]
            features = {}
            for encoder, module in zip((vision, series), modules, strict=False):
                media = [item for sample in samples for item in sample.items(encoder.modality)]
                if media:
                    features[encoder.modality] = encoder.forward(module, encoder.batch(media))
            pack = join_samples(tuple(members), tuple(Joined(s, {}) for s in samples))
            total = total + model.loss(modules[2], replace(pack, features=features))
        total = total / sum(length.targets for length in lengths)
        torch.autograd.backward(total)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total.detach()))
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_two_encoders_train_as_the_plain_loop(runtime: Runtime, tmp_path: Path) -> None:
    """Two modalities in the same samples, one encoder of them replicated, give the plain loop's
    losses, and gradients reach both."""
    graph = two_encoder_graph()
    ran = run_graph(graph, tmp_path, runtime=runtime)
    assert ran.losses == pytest.approx(train_two_plainly(graph), rel=1e-10, abs=0)


def test_a_graph_without_encoder_trains(tmp_path: Path) -> None:
    """A pool of samples alone feeds a language model of text."""
    graph = Graph("text", step=Step(samples=4), steps=6)
    samples = graph.add(TextSamples())
    packs = graph.add(CostPacker(max_tokens=16), graph.pool(samples, capacity="1 MiB"))
    language = LanguageModel(vocabulary=VOCABULARY, width=12, depth=1, heads=2, groups=1)
    graph.add(language, packs, optimizer=AdamW(lr=1e-2), name="model")
    ran = run_graph(graph, tmp_path)
    assert ran.losses[-1] < ran.losses[0]
