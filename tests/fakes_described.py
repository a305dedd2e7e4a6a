"""Operators that are described and never run, and a graph of them without mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from flowengine.api import (
    AdamW,
    Answer,
    Encoder,
    GradientReturn,
    Lengths,
    Objective,
    Operator,
    Pack,
    Packer,
    Sample,
    Source,
)
from flowengine.graph import Graph, Step, Stream

ADAM = AdamW(lr=1e-3)


class Pages(Source[Sample]):
    size: int | None = 1000

    def read(self, index: int) -> Sample:
        raise NotImplementedError

    def num_samples(self) -> int | None:
        return self.size


class Numbers(Source[int]):
    def read(self, index: int) -> int:
        return index


class Eye(Encoder[nn.Module, Tensor]):
    modality = "image"

    def build(self) -> nn.Module:
        raise NotImplementedError

    def feature_shape(self) -> tuple[int, ...]:
        return (64,)

    def batch(self, media: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError

    def forward(self, module: nn.Module, batch: Tensor) -> Tensor:
        raise NotImplementedError


class Packs(Packer):
    max_tokens: int = 1024

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        raise NotImplementedError


class Model(Objective[nn.Module]):
    takes: Mapping[str, tuple[int, ...]] | None = None

    def feature_shapes(self) -> Mapping[str, tuple[int, ...]] | None:
        return self.takes

    def build(self) -> nn.Module:
        raise NotImplementedError

    def loss(self, module: nn.Module, pack: Pack) -> Tensor:
        raise NotImplementedError

    def answers(self, module: nn.Module, pack: Pack) -> list[Answer]:
        raise NotImplementedError


class Score(Operator):
    def process(self, answer: Answer) -> None:
        raise NotImplementedError


def clean(sample: Sample) -> Sample:
    return sample


@dataclass(frozen=True)
class DocQA:
    """A graph and its streams."""

    graph: Graph
    pages: Stream
    features: Stream
    packs: Stream
    model: Stream


def docqa(
    *,
    source: Source[Any] | None = None,
    eye: Mapping[str, Any] | None = None,
    capacity: int | str = "64 MiB",
    disk: int = 0,
    returns: bool = True,
    model: Objective[Any] | None = None,
    **settings: Any,
) -> DocQA:
    """A graph without mistakes, unless an argument makes one."""
    graph = Graph("docqa", **{"step": Step(samples=64), "steps": 10, **settings})
    pages = graph.add(source or Pages())
    features = graph.add(Eye(), pages, **(eye or {"optimizer": ADAM}))
    packs = graph.add(Packs(), graph.pool(pages, features, capacity=capacity, disk=disk))
    trained = graph.add(model or Model(), packs, optimizer=ADAM)
    if returns:
        graph.feedback(GradientReturn(), trained["gradients"], to=features)
    return DocQA(graph, pages, features, packs, trained)
