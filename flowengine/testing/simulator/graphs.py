"""Small graphs of stand-in operators: what they compute is which samples they have seen.

A sample's lengths, tensors and flaws follow from its number. Its tensors say their number of bytes
without having them (they are expanded from one element), so that payloads go through the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import torch
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
from flowengine.graph import Credits, Graph, Step
from flowengine.runtime.topology import Topology
from flowengine.testing.simulator.settings import Setting

MODALITIES = ("image", "audio")
MAX_TOKENS = 12
ROW_SHAPE = (6144,)
ROW_BYTES = 4 * 6144
SAMPLE_BYTES = 52 * 1024
"""Bytes of share that hold a sample's media, or its features: the largest just fit."""

HELD_OUT = 1000
"""Numbers of held-out samples start here."""


def media_rows(number: int, modality: str) -> int:
    """Feature rows of a sample's media; 0 if it has none."""
    return (0, 1, 2, 1, 0, 2, 1)[(number + (3 if modality == "audio" else 0)) % 7]


def num_targets(number: int) -> int:
    """Its labels that are targets."""
    return 1 + number % 2


def is_too_long(number: int) -> bool:
    """Whether no pack holds it."""
    return number % 11 == 7


@cache
def sample_of(number: int) -> Sample:
    """The sample."""
    targets = num_targets(number)
    media = {
        modality: torch.full((1,), number, dtype=torch.int64).expand(rows * 640)
        for modality in MODALITIES
        if (rows := media_rows(number, modality))
    }
    grids = {}
    if number % 3 == 1:
        grids["layout"] = torch.full((1,), number, dtype=torch.int64).expand(1200)
    return Sample(
        tokens=torch.full((1 + targets,), number, dtype=torch.int64),
        labels=torch.tensor([-100] + [number] * targets),
        media={name: tensor.expand(2, -1) for name, tensor in media.items()},
        note={"number": number},
        grids=grids,
    )


class Numbers(Source[Sample]):
    """Sample i is number i, or HELD_OUT + i."""

    total: int | None = None
    first: int = 0
    some_too_long: bool = False

    def num_samples(self) -> int | None:
        return self.total

    def lengths(self, index: int) -> Lengths:
        number = self.first + index
        targets = num_targets(number)
        tokens = 99 if self.some_too_long and is_too_long(number) else 1 + targets
        rows = {modality: media_rows(number, modality) for modality in MODALITIES}
        return Lengths(tokens=tokens, targets=targets, media=rows)

    def read(self, index: int) -> Sample:
        return sample_of(self.first + index)


class InOrder(Packer):
    """Packs of `most` samples, as they come."""

    most: int = 1

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        indices = list(range(len(lengths)))
        return [indices[i : i + self.most] for i in range(0, len(indices), self.most)]


class Eye(Encoder[nn.Module, Any]):
    """Stands for an encoder; flowengine.testing.simulator.numbers does its work."""

    modality: ClassVar[str] = "image"

    def build(self) -> nn.Module:
        return nn.Identity()

    def feature_shape(self) -> tuple[int, ...]:
        return ROW_SHAPE

    def batch(self, media: Sequence[Tensor]) -> Any:
        return media

    def forward(self, module: nn.Module, batch: Any) -> Tensor:  # noqa: ARG002
        return torch.zeros(())


class Ear(Eye):
    """The same for sound."""

    modality: ClassVar[str] = "audio"


class Model(Objective[nn.Module]):
    """Stands for an objective, likewise."""

    def build(self) -> nn.Module:
        return nn.Identity()

    def loss(self, module: nn.Module, pack: Pack) -> Tensor:  # noqa: ARG002
        return torch.zeros(())

    def answers(self, module: nn.Module, pack: Pack) -> list[Answer]:  # noqa: ARG002
        return []


class PassOn(Operator):
    """Gives out what it takes in, made anew."""

    def process(self, sample: Sample) -> Sample:
        return sample_of(int(sample.note["number"]))


class Keep(PassOn):
    """Keeps the sum of the training samples that it has seen."""

    def __post_init__(self) -> None:
        self.total = 0

    def process(self, sample: Sample) -> Sample:
        number = int(sample.note["number"])
        self.total += number if number < HELD_OUT else 0
        return sample_of(number)

    def state(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state(self, state: Any) -> None:
        self.total = state["total"]


def read_answer(answer: Answer) -> None:
    """Takes an answer in."""
    assert len(answer.predicted)


@cache
def topology_of(given: Setting) -> Topology:
    """The workers of such a graph."""
    return Topology(build(given))


def build(given: Setting) -> Graph:
    """The graph of this setting."""
    graph = Graph(
        "numbers",
        step=Step(samples=given.samples),
        steps=None if given.ends else given.steps,
        staleness=given.staleness,
        clip_norm=1.0 if given.clips else None,
    )
    rows = max(given.items, given.packs)
    credits = Credits(items=rows, size=4096 * rows)
    samples = graph.add(
        Numbers(total=given.num_samples if given.ends else None, some_too_long=given.samples > 1),
        name="source",
    )
    read = samples
    if given.function:
        operator = Keep() if given.keeps else PassOn()
        read = graph.add(
            operator, samples, name="pass_on", replicas=given.function, credits=credits
        )
    features = [
        graph.add(
            what,
            read,
            name=what.modality,
            replicas=given.encoders,
            freeze=place < given.frozen,
            optimizer=None if place < given.frozen else AdamW(lr=1.0),
            window=given.window,
            credits=credits,
        )
        for place, what in enumerate((Eye(), Ear())[: given.modalities])
    ]
    workers = 1 + given.function + given.encoders * given.modalities
    # Shares are even, but for the objective's, which is a sixteenth of the others'.
    capacity = (workers + 1) * SAMPLE_BYTES * given.packs * given.capacity
    packer = InOrder(max_tokens=MAX_TOKENS, most=given.packs, too_long="dead-letter")
    packs = graph.add(
        packer,
        graph.pool(read, *features, capacity=capacity),
        name="packer",
        credits=credits,
    )
    model = graph.add(
        Model(), packs, name="model", replicas=given.objectives, optimizer=AdamW(lr=1.0)
    )
    graph.stage("model").credits = Credits(items=given.items, size=64 * 1024)
    for place, stream in enumerate(features):
        if place >= given.frozen:
            graph.feedback(GradientReturn(), model["gradients"], to=stream)
    if given.evaluates:
        graph.evaluate(Numbers(first=HELD_OUT, total=2), through=samples, samples=2, every=1)
        graph.add(read_answer, model["answers"], name="answers")
    if given.every is not None:
        graph.checkpoint(every=given.every, keep_last=given.keep_last)
    return graph
