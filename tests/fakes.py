"""A small training graph for tests: samples of mixed size, some of them text alone."""

from __future__ import annotations

from typing import Any

import torch

from flowengine import Gang, Graph, Step
from flowengine.api import AdamW, Constant, GradientReturn, Lengths, Sample, Source
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker
from flowengine.operators.sinks import Accuracy
from flowengine.operators.vision import VisionEncoder

VOCABULARY = 23
IMAGE = 0


class MixedSamples(Source[Sample]):
    """Random pictures of 1 to 6 cells with 2 to 9 words; every third sample has no picture."""

    seed: int = 0
    total: int | None = None

    def num_samples(self) -> int | None:
        return self.total

    def lengths(self, index: int) -> Lengths:
        rows, words = self._sizes(index)
        return Lengths(tokens=rows + words, targets=words - 1, media={"image": rows})

    def read(self, index: int) -> Sample:
        rows, words = self._sizes(index)
        draw = torch.Generator().manual_seed(1000 * self.seed + index)
        text = torch.randint(1, VOCABULARY, (words,), generator=draw)
        labels = torch.cat([torch.full((rows + 1,), -100), text[1:]])
        picture = torch.randint(0, 256, (16, 16 * rows, 3), dtype=torch.uint8, generator=draw)
        return Sample(
            tokens=torch.cat([torch.full((rows,), IMAGE), text]),
            labels=labels,
            media={"image": picture} if rows else {},
            note={"kind": "text" if not rows else "picture", "index": index},
        )

    def _sizes(self, index: int) -> tuple[int, int]:
        draw = torch.Generator().manual_seed(7919 * self.seed + index + 1)
        rows, words = torch.randint(0, 6, (2,), generator=draw).tolist()
        return (0 if index % 3 == 2 else 1 + rows), 2 + words


def small_graph(
    *,
    steps: int | None = 4,
    samples: int = 8,
    max_tokens: int = 32,
    min_packs: int = 1,
    replicas: int = 1,
    model_replicas: int = 1,
    gang: int | Gang = 1,
    model_gang: int | Gang = 1,
    staleness: int = 0,
    freeze: bool = False,
    dtype: Any = "float32",
    clip_norm: float | None = 1.0,
    activations: Any = "stash",
    window: int | None = None,
    seed: int = 0,
    total: int | None = None,
    evaluate: int = 0,
    capacity: str = "16 MiB",
) -> Graph:
    """Source, encoder, packer, language model, feedback; and an evaluation if asked for."""
    optimizer = AdamW(lr=3e-3, schedule=Constant(warmup=2))
    graph = Graph(
        "small",
        step=Step(samples=samples),
        steps=steps,
        staleness=staleness,
        clip_norm=clip_norm,
        seed=seed,
        dtype=dtype,
    )
    pages = graph.add(MixedSamples(seed=seed, total=total), name="source")
    features = graph.add(
        VisionEncoder(width=16, depth=1, heads=2, output=12),
        pages,
        name="encoder",
        replicas=replicas,
        gang=gang,
        optimizer=optimizer,
        freeze=freeze,
        activations=activations,
        window=window,
    )
    pooled = graph.pool(pages, features, capacity=capacity)
    packs = graph.add(CostPacker(max_tokens=max_tokens, min_packs=min_packs), pooled, name="packer")
    model = graph.add(
        LanguageModel(vocabulary=VOCABULARY, width=12, depth=1, heads=2, groups=1),
        packs,
        name="model",
        optimizer=optimizer,
        replicas=model_replicas,
        gang=model_gang,
    )
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    if evaluate:
        graph.evaluate(MixedSamples(seed=seed + 1), through=pages, samples=evaluate)
        graph.add(Accuracy(), model["answers"], name="accuracy")
    return graph
