"""Operators that fail in one way each, and the small training graph to put them in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import torch
from fakes import VOCABULARY, MixedSamples
from torch import Tensor

from flowengine import Credits, Graph, Step
from flowengine.api import (
    AdamW,
    Answer,
    Context,
    GradientReturn,
    Gradients,
    Lengths,
    Operator,
    Pack,
    Sample,
)
from flowengine.operators.language import LanguageModel, LanguageTransformer
from flowengine.operators.packing import CostPacker
from flowengine.operators.sinks import Accuracy
from flowengine.operators.vision import VisionEncoder, VisionTransformer
from flowengine.operators.vision.transformer import Patches

BAD = 4
"""The sample that the faulty operators stumble over; it has a picture."""


def faulty_graph(
    *,
    source: MixedSamples | None = None,
    encoder: VisionEncoder | None = None,
    packer: CostPacker | None = None,
    model: LanguageModel | None = None,
    gradients: GradientReturn | None = None,
    sink: Operator | None = None,
    between: Any = None,
    held_out: MixedSamples | None = None,
    replicas: int = 1,
    clip_norm: float | None = 1.0,
    capacity: str = "16 MiB",
    credits: Credits | None = None,
    steps: int = 2,
    samples: int = 4,
    freeze: bool = False,
    staleness: int = 0,
) -> Graph:
    """The small training graph with an evaluation, and with any of its operators replaced."""
    graph = Graph(
        "faulty",
        step=Step(samples=samples),
        steps=steps,
        clip_norm=clip_norm,
        staleness=staleness,
    )
    pages = graph.add(source or MixedSamples(), name="source")
    entry = pages if between is None else graph.add(between, pages, name="between")
    features = graph.add(
        encoder or VisionEncoder(width=16, depth=1, heads=2, output=12),
        entry,
        name="encoder",
        optimizer=None if freeze else AdamW(lr=1e-3),
        freeze=freeze,
        replicas=replicas,
        credits=credits,
    )
    pooled = graph.pool(entry, features, capacity=capacity)
    packs = graph.add(packer or CostPacker(max_tokens=32), pooled, name="packer", credits=credits)
    shape: dict[str, Any] = {"vocabulary": VOCABULARY, "width": 12, "depth": 1, "heads": 2}
    model = model or LanguageModel(**shape, groups=1)
    outcome = graph.add(model, packs, name="model", optimizer=AdamW(lr=1e-3), credits=credits)
    if not freeze:
        graph.feedback(gradients or GradientReturn(), outcome["gradients"], to=features)
    graph.evaluate(held_out or MixedSamples(seed=1), through=pages, samples=4)
    graph.add(sink or Accuracy(), outcome["answers"], name="accuracy")
    return graph


class FaultySource(MixedSamples):
    """Fails on sample BAD in the way that `fault` says."""

    fault: str = "read"

    def open(self, context: Context) -> None:
        if self.fault == "open":
            raise OSError(f"{context.stage}: no such disk")

    def read(self, index: int) -> Sample:
        sample = super().read(index)
        if index != BAD:
            return sample
        if self.fault == "read":
            raise ValueError("source: cannot read")
        if self.fault == "longer":
            return replace(sample, tokens=torch.cat([sample.tokens, sample.tokens[-1:]]))
        if self.fault == "first label":
            labels = sample.labels.clone()
            labels[0], labels[-1] = 3, -100
            return replace(sample, labels=labels)
        if self.fault == "smaller picture":
            return replace(sample, media={"image": sample.items("image")[0][:, :-16]})
        return replace(sample, labels=torch.full_like(sample.labels, -100))

    def lengths(self, index: int) -> Lengths:
        if index == BAD and self.fault == "lengths":
            raise ValueError("source: cannot measure")
        found = super().lengths(index)
        return replace(found, targets=0) if self.fault == "no targets" else found


class NoTargets(MixedSamples):
    """Samples whose labels are all ignored."""

    def lengths(self, index: int) -> Lengths:
        return replace(super().lengths(index), targets=0)


class FaultyEncoder(VisionEncoder):
    """Fails in the step of sample BAD in the way that `fault` says."""

    fault: str = "forward"

    def batch(self, media: Sequence[Tensor]) -> Patches:
        if self.fault == "batch":
            raise ValueError("encoder: cannot batch")
        return super().batch(media)

    def forward(self, module: VisionTransformer, batch: Patches) -> Tensor:
        if self.fault == "forward":
            raise ValueError("encoder: cannot look")
        rows = super().forward(module, batch)
        if self.fault == "shape":
            return rows[:, :-1]
        return Fussy.apply(rows) if self.fault == "backward" else rows[:-1]  # type: ignore[no-untyped-call]


class Fussy(torch.autograd.Function):
    """Passes rows through, and takes no gradient."""

    @staticmethod
    def forward(_: Any, rows: Tensor) -> Tensor:
        return rows.clone()

    @staticmethod
    def backward(_: Any, *__: Tensor) -> Tensor:
        raise ValueError("encoder: cannot learn")


class FaultyPacker(CostPacker):
    """Plans wrongly in the way that `fault` says."""

    fault: str = "plan"

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        if self.fault == "plan":
            raise ValueError("packer: cannot plan")
        packs = super().plan(lengths)
        return packs[1:] if self.fault == "lost" else [*packs, packs[0]]


class FaultyModel(LanguageModel):
    """Fails in the way that `fault` says."""

    fault: str = "loss"

    def loss(self, module: LanguageTransformer, pack: Pack) -> Tensor:
        if self.fault == "loss":
            raise ValueError("model: cannot score")
        loss = super().loss(module, pack)
        if self.fault == "nan":
            return loss * torch.nan
        return loss.expand(2) if self.fault == "shape" else loss

    def answers(self, module: LanguageTransformer, pack: Pack) -> list[Answer]:
        if self.fault == "answers":
            raise ValueError("model: cannot answer")
        answers = super().answers(module, pack)
        return answers[1:] if self.fault == "too few" else answers


class FaultyReturn(GradientReturn):
    """Returns gradients that are none, in the way that `fault` says."""

    fault: str = "process"

    def process(self, gradients: Gradients) -> Gradients:
        rows = gradients.rows
        if self.fault == "process":
            raise ValueError("feedback: cannot return")
        if self.fault == "nan":
            return replace(gradients, rows=rows * torch.nan)
        return replace(gradients, rows=rows[:1] if self.fault == "shape" else rows.double())


class FaultySink(Operator):
    """Fails in the way that `fault` says."""

    fault: str = "process"

    def process(self, answer: Answer) -> None:
        if self.fault == "process":
            assert isinstance(answer, Answer)
            raise ValueError("sink: cannot take")

    def flush(self) -> None:
        if self.fault == "flush":
            raise ValueError("sink: cannot flush")

    def close(self) -> None:
        if self.fault == "close":
            raise ValueError("sink: cannot close")


class Unopened(Operator):
    """Has a file once it is open, as most sinks do, and closes it."""

    def open(self, context: Context) -> None:
        self._file = (context.run_dir / "answers").open("w")

    def process(self, answer: Answer) -> None:
        self._file.write(f"{answer}\n")

    def close(self) -> None:
        self._file.close()


class Locked(MixedSamples):
    """Holds what cannot travel to another process."""

    lock: Any = field(default_factory=threading.Lock)


def drop(sample: Sample) -> Sample | None:
    """Drops one sample, which has a picture and stands in a pack."""
    return None if sample.note["index"] == BAD else sample


def parse_nonsense(sample: Sample) -> Sample:
    """Fails deep in a library."""
    return replace(sample, note={"number": int(torch.zeros(2).tolist().__str__(), base=10)})
