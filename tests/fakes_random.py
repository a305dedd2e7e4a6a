"""Random graphs: of functions, and of encoders, a packer and an objective, with random bounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from fakes_plain import Add, Gather, Numbers, double, total
from torch import Tensor, nn

from flowengine import Credits, Graph, Step
from flowengine.api import (
    AdamW,
    Answer,
    Encoder,
    GradientReturn,
    Lengths,
    Objective,
    Pack,
    Sample,
    Source,
)
from flowengine.graph import Stream
from flowengine.operators.packing import CostPacker

WIDTH = 8


class Boxes(Source[Sample]):
    """Samples with some rows of media and a few words; `scale` times as many bytes of media."""

    scale: int = 1

    def num_samples(self) -> int | None:
        return None

    def lengths(self, index: int) -> Lengths:
        rows, sounds, words = self._sizes(index)
        return Lengths(tokens=words, targets=words - 1, media={"image": rows, "audio": sounds})

    def read(self, index: int) -> Sample:
        rows, sounds, words = self._sizes(index)
        media = {"image": rows, "audio": sounds}
        return Sample(
            tokens=torch.arange(words),
            labels=torch.cat([torch.tensor([-100]), torch.arange(1, words)]),
            media={
                name: torch.ones(count, 64 * self.scale) for name, count in media.items() if count
            },
        )

    def _sizes(self, index: int) -> tuple[int, int, int]:
        draw = random.Random(index)
        return draw.randrange(4), draw.randrange(3), draw.randrange(2, 7)


class Lift(Encoder[nn.Linear, Tensor]):
    """A linear map of each row's mean."""

    modality: ClassVar[str] = "image"

    def build(self) -> nn.Linear:
        return nn.Linear(1, WIDTH)

    def feature_shape(self) -> tuple[int, ...]:
        return (WIDTH,)

    def batch(self, media: Sequence[Tensor]) -> Tensor:
        return torch.cat([rows.mean(1, keepdim=True) for rows in media])

    def forward(self, module: nn.Linear, batch: Tensor) -> Tensor:
        return module(batch)  # type: ignore[no-any-return]


class Hear(Lift):
    """The same for sound."""

    modality: ClassVar[str] = "audio"


class Total(Objective[nn.Embedding]):
    """The squares of all features, and of the words' embeddings."""

    def build(self) -> nn.Embedding:
        return nn.Embedding(8, 4)

    def loss(self, module: nn.Embedding, pack: Pack) -> Tensor:
        words: Tensor = module(pack.tokens).square().sum()
        return words + sum(rows.square().sum() for rows in pack.features.values())

    def answers(self, module: nn.Embedding, pack: Pack) -> list[Answer]:  # noqa: ARG002
        return [Answer(torch.zeros(1).long(), torch.zeros(1).long()) for _ in pack.ids]


def same_sample(sample: Sample) -> Sample:
    return sample


def take(answer: Answer) -> None:
    assert answer.predicted.shape == answer.expected.shape


def random_graph(seed: int) -> Graph:
    """A graph of this seed; it need not be one that can run."""
    draw = random.Random(seed)
    return _training(draw) if draw.random() < 0.7 else _plain(draw)


def _credits(draw: random.Random) -> Credits:
    return Credits(
        items=draw.choice((1, 3, 8, 64, 64)), size=draw.choice((700, 2000, 8000, 2**20, 2**20))
    )


def _plain(draw: random.Random) -> Graph:
    """Functions in chains that part and meet again."""
    graph = Graph("plain", step=Step(samples=draw.randint(1, 6)), steps=draw.randint(1, 3))
    source = Numbers(size=draw.choice((1, 3, 100, 4096)))
    streams: list[Stream] = [graph.add(source, name="source")]
    for index in range(draw.randint(1, 5)):
        setting: dict[str, Any] = {"name": f"f{index}", "credits": _credits(draw)}
        setting["replicas"] = draw.choice((1, 1, 2, 3))
        if len(streams) > 1 and draw.random() < 0.5:
            joined = graph.add(total, *draw.sample(streams, 2), **setting)
            streams.append(joined)
        else:
            what = draw.choice((double, Add(amount=draw.randint(1, 9))))
            streams.append(graph.add(what, draw.choice(streams), **setting))
    read = {end.stage for stage in graph.stages for end in stage.producers}
    for index, stream in enumerate(s for s in streams if s.stage not in read):
        graph.add(Gather(), stream, name=f"sink{index}", credits=_credits(draw))
    return graph


def _training(draw: random.Random) -> Graph:
    """A source, functions, one or two encoders, a packer, an objective, feedback where it is due,
    or is left out by mistake."""
    graph = Graph(
        "training",
        step=Step(samples=draw.randint(1, 6)),
        steps=draw.randint(1, 3),
        staleness=draw.choice((0, 0, 1, 2)),
        clip_norm=draw.choice((None, 1.0)),
    )
    samples = graph.add(Boxes(scale=draw.choice((1, 4, 20))), name="source")
    stream = samples
    for index in range(draw.randrange(3)):
        stream = graph.add(
            same_sample,
            stream,
            name=f"f{index}",
            replicas=draw.choice((1, 2)),
            credits=_credits(draw),
        )
    features, frozen = [], draw.random() < 0.2
    for what in (Lift(), Hear())[: draw.randint(1, 2)]:
        features.append(
            graph.add(
                what,
                stream,
                name=what.modality,
                replicas=draw.choice((1, 1, 2, 3)),
                optimizer=None if frozen else AdamW(lr=0.01),
                freeze=frozen,
                window=draw.choice((None, None, 1, 2)),
                credits=_credits(draw),
            )
        )
    capacity = draw.choice((24, 64, 200, 2000, 2000)) * 1024
    packs = graph.add(
        CostPacker(max_tokens=draw.choice((6, 12, 24))),
        graph.pool(stream, *features, capacity=capacity),
        name="packer",
        credits=_credits(draw),
    )
    model = graph.add(
        Total(),
        packs,
        name="model",
        optimizer=AdamW(lr=0.01),
        replicas=draw.choice((1, 1, 2)),
        credits=_credits(draw),
    )
    for encoder in features:
        if not frozen and draw.random() < 0.95:
            graph.feedback(GradientReturn(), model["gradients"], to=encoder)
    if draw.random() < 0.3:
        graph.evaluate(Boxes(), through=samples, samples=draw.randint(1, 3), every=1)
        graph.add(take, model["answers"], name="answers")
    return graph
