"""The graph as Mermaid text."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from flowengine.api import (
    AdamW,
    Answer,
    Encoder,
    GradientReturn,
    Lengths,
    Objective,
    Pack,
    Packer,
    Sample,
    Source,
)
from flowengine.graph import Graph, Step, draw_mermaid


class Pages(Source[Sample]):
    def read(self, index: int) -> Sample:
        raise NotImplementedError


class Eye(Encoder[nn.Module, Tensor]):
    modality = "image"

    def build(self) -> nn.Module:
        raise NotImplementedError

    def feature_shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    def batch(self, media: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError

    def forward(self, module: nn.Module, batch: Tensor) -> Tensor:
        raise NotImplementedError


class Packs(Packer):
    max_tokens: int = 1024

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        raise NotImplementedError


class Model(Objective[nn.Module]):
    def build(self) -> nn.Module:
        raise NotImplementedError

    def loss(self, module: nn.Module, pack: Pack) -> Tensor:
        raise NotImplementedError

    def answers(self, module: nn.Module, pack: Pack) -> list[Answer]:
        raise NotImplementedError


def test_every_stage_and_stream() -> None:
    """Stages with their placing, streams with their types, the pool, and dashed feedback."""
    graph = Graph("docqa", step=Step(samples=8))
    pages = graph.add(Pages())
    features = graph.add(Eye(), pages, optimizer=AdamW(lr=1e-3), replicas=2)
    packs = graph.add(Packs(), graph.pool(pages, features, capacity="512 MiB"))
    model = graph.add(Model(), packs, freeze=True)
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    assert draw_mermaid(graph).splitlines() == [
        "flowchart LR",
        '    pages(["pages<br/>Pages"])',
        '    eye["eye<br/>Eye<br/>2 replicas"]',
        '    packs[/"packs<br/>Packs"/]',
        '    model[["model<br/>Model<br/>frozen"]]',
        '    pool[("pool<br/>512 MiB")]',
        "    pages -->|Sample| pool",
        "    eye -->|Features| pool",
        "    pages -->|Sample| eye",
        "    pool -->|Joined| packs",
        "    packs -->|Pack| model",
        "    model -.->|gradients| eye",
    ]
