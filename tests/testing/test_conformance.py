"""The conformance kit passes the library's operators, and finds planted mistakes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from fakes import IMAGE, VOCABULARY, MixedSamples
from torch import Tensor, nn

from flowengine.api import Encoder, Lengths, Pack, Packer, Sample
from flowengine.operators.language import LanguageModel
from flowengine.operators.language.transformer import LanguageTransformer
from flowengine.operators.packing import CostPacker
from flowengine.operators.sinks import Accuracy
from flowengine.operators.sources import DigitCards
from flowengine.operators.vision import VisionEncoder
from flowengine.testing import check_operator

SAMPLES = [MixedSamples().read(index) for index in range(4)]


def model(kind: type[LanguageModel] = LanguageModel) -> LanguageModel:
    return kind(vocabulary=VOCABULARY, width=12, depth=1, heads=2, groups=1)


def features() -> dict[str, Tensor]:
    counts = [int((sample.tokens == IMAGE).sum()) for sample in SAMPLES]
    return {f"image/{i}": torch.ones(n, 12) * i for i, n in enumerate(counts) if n}


def test_the_library_conforms() -> None:
    """Every operator of the library keeps to the rules."""
    check_operator(DigitCards(), num_read=4)
    check_operator(CostPacker(max_tokens=100))
    check_operator(VisionEncoder(width=16, depth=1, heads=2, output=12), samples=SAMPLES)
    check_operator(model(), samples=SAMPLES, features=features())
    check_operator(Accuracy())


class Forgetful(MixedSamples):
    """Says one token too few."""

    def lengths(self, index: int) -> Lengths:
        lengths = super().lengths(index)
        return Lengths(tokens=lengths.tokens - 1, targets=lengths.targets, media=lengths.media)


class Fickle(MixedSamples):
    """Gives another sample each time."""

    def read(self, index: int) -> Sample:
        return super().read(index + int(torch.randint(1, 1000, ())))


class Losing(Packer):
    """Drops a sample."""

    max_tokens: int = 10

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        return [[index] for index in range(1, len(lengths))]


class Mixing(Encoder[nn.Linear, Tensor]):
    """Normalises over the whole batch."""

    modality = "image"

    def feature_shape(self) -> tuple[int, ...]:
        return (2,)

    def build(self) -> nn.Linear:
        return nn.Linear(1, 2)

    def batch(self, media: Sequence[Tensor]) -> Tensor:
        means = torch.stack([item.double().mean() for item in media])
        return (means - means.mean())[:, None]

    def forward(self, module: nn.Linear, batch: Tensor) -> Tensor:
        rows: Tensor = module(batch)
        return rows


class Averaging(LanguageModel):
    """Gives the mean of the loss."""

    def loss(self, module: LanguageTransformer, pack: Pack) -> Tensor:
        return super().loss(module, pack) / max(1, len(pack.tokens))


def test_planted_mistakes_are_found() -> None:
    """Each rule refuses an operator that breaks it, and says what is wrong."""
    with pytest.raises(AssertionError, match="lengths say"):
        check_operator(Forgetful())
    with pytest.raises(AssertionError, match="differs when read again"):
        check_operator(Fickle())
    with pytest.raises(AssertionError):
        check_operator(Losing())
    with pytest.raises(AssertionError, match="depend on the batch"):
        check_operator(Mixing(), samples=SAMPLES)
    with pytest.raises(AssertionError, match="depends on the packing"):
        check_operator(model(Averaging), samples=SAMPLES, features=features())
