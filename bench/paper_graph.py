"""The models and the samples of FlowTrain's evaluation (arXiv 2606.23087), as far as it tells them.

Operators that are never built: shapes and lengths are all that planning and simulation need.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import numpy as np
from workloads import Draw

from flowengine import Graph, Step
from flowengine.api import (
    AdamW,
    Encoder,
    GradientReturn,
    Lengths,
    Objective,
    Pack,
    Sample,
    Source,
    TransformerShape,
)
from flowengine.operators.packing import CostPacker
from flowengine.schedule import Cost, model_cost

MAX_TOKENS = 8192
PICTURE_TOKEN = 28
"""Pixels of a side that make one feature row: patches of 14, merged 2 x 2."""

BACKBONES = {
    "VLM-6B": TransformerShape(
        layers=36,
        width=2560,
        heads=32,
        head_width=128,
        kv_heads=8,
        hidden=9728,
        gated=True,
        causal=True,
        vocabulary=151936,
    ),
    "VLM-32B": TransformerShape(
        layers=64,
        width=5120,
        heads=64,
        head_width=128,
        kv_heads=8,
        hidden=25600,
        gated=True,
        causal=True,
        vocabulary=151936,
    ),
    "VLM-72B": TransformerShape(
        layers=80,
        width=8192,
        heads=64,
        head_width=128,
        kv_heads=8,
        hidden=29568,
        gated=True,
        causal=True,
        vocabulary=152064,
    ),
}
"""Qwen3-4B and Qwen3-32B; for 72B, of which there is no Qwen3, Qwen2.5-72B (their config.json)."""

ENCODERS = {
    "so400m": TransformerShape(
        layers=27, width=1152, heads=16, hidden=4304, positions_per_row=4,
        row_weights=4608 * (4608 + 2560), position_weights=2 * 3 * 14 * 14 * 1152,
    ),
    "vit-2b": TransformerShape(
        layers=48, width=1792, heads=16, hidden=8064, positions_per_row=4,
        row_weights=7168 * (7168 + 2560), position_weights=3 * 14 * 14 * 1792,
    ),
}  # fmt: skip
"""Qwen3-VL's (SigLIP-2 SO-400M with a merger), and one that makes 4 B into 6 B."""


class Infographics(Source[Sample]):
    """InfoVQA-like: one picture of native size, a question and an answer; at most 8,192 tokens."""

    seed: int = 0

    def lengths(self, index: int) -> Lengths:
        text, rows = self._drawn[index]
        media = {"image": int(rows), "audio": int(text)}
        return Lengths(tokens=int(text + rows), targets=int(text) // 2, media=media)

    def read(self, index: int) -> Sample:
        raise NotImplementedError("these samples have lengths alone")

    @cached_property
    def _drawn(self) -> Any:
        draw = Draw("infographics", seed=self.seed, start=0)
        text = np.clip(draw.lognormal(0, median=120.0, sigma=0.9), 8, 2048)
        width = 1000.0 * np.exp(0.35 * draw.normal(3))
        height = width * 2.0 * np.exp(0.50 * draw.normal(5))
        rows = np.maximum(1, width // PICTURE_TOKEN) * np.maximum(1, height // PICTURE_TOKEN)
        rows = rows.astype(np.int64)
        kept = text + rows <= MAX_TOKENS
        return np.stack([text[kept], rows[kept]], axis=1)


class ShapedEncoder(Encoder[Any, Any]):
    """An encoder of this shape."""

    of: str
    width: int
    modality: ClassVar[str] = "image"

    def shape(self) -> TransformerShape:
        return ENCODERS[self.of]

    def feature_shape(self) -> tuple[int, ...]:
        return (self.width,)

    def build(self) -> NoReturn:
        raise NotImplementedError("planned with, never built")

    def batch(self, media: Sequence[Any]) -> NoReturn:
        raise NotImplementedError("planned with, never built")

    def forward(self, module: Any, batch: Any) -> NoReturn:
        raise NotImplementedError("planned with, never built")


class ShapedListener(ShapedEncoder):
    """A second encoder, for clips."""

    modality: ClassVar[str] = "audio"


class ShapedModel(Objective[Any]):
    """A language model of this shape."""

    of: str

    def shape(self) -> TransformerShape:
        return BACKBONES[self.of]

    def build(self) -> NoReturn:
        raise NotImplementedError("planned with, never built")

    def loss(self, module: Any, pack: Pack) -> NoReturn:
        raise NotImplementedError("planned with, never built")

    def answers(self, module: Any, pack: Pack) -> NoReturn:
        raise NotImplementedError("planned with, never built")


def cost_of(shape: TransformerShape) -> Cost:
    """What a sample costs the language model, in FLOPs."""
    return model_cost(
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        hidden=shape.hidden,
        vocabulary=shape.vocabulary,
        flops_per_s=1.0,
    )


def build(
    *,
    model: str = "VLM-6B",
    encoder: str = "so400m",
    samples: int = 672,
    packs: int = 256,
    freeze: bool = True,
    listens: bool = False,
) -> Graph:
    """One of the paper's graphs. packs: of a step; 672 samples make 256 packs of up to 8,192.
    listens: with a second encoder, whose rows are counted as text has tokens."""
    graph = Graph(model, step=Step(samples=samples), clip_norm=1.0, steps=8)
    pages = graph.add(Infographics())
    width = BACKBONES[model].width
    adam = AdamW(lr=1e-5)
    features = graph.add(
        ShapedEncoder(of=encoder, width=width), pages, freeze=freeze, optimizer=adam
    )
    streams = [features]
    if listens:
        listener = ShapedListener(of=encoder, width=width)
        streams.append(graph.add(listener, pages, freeze=freeze, optimizer=adam))
    pooled = graph.pool(pages, *streams, capacity="2 TiB")
    packer = CostPacker(max_tokens=MAX_TOKENS, min_packs=packs, cost=cost_of(BACKBONES[model]))
    joined = graph.add(packer, pooled)
    trained = graph.add(ShapedModel(of=model), joined, optimizer=adam)
    for stream in streams:
        graph.feedback(GradientReturn(), trained["gradients"], to=stream)
    return graph
