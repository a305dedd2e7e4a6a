"""What `flowengine new operator` writes: an operator that works, and a test that passes. Name
stands for the class, module for its file."""

from __future__ import annotations

ENCODER = '''"""An encoder of one modality."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flowengine.api import Encoder


class Name(Encoder[nn.Sequential, Tensor]):
    """A feature row of `width` channels per 16 values of a series, floats [16 * N]."""

    modality = "series"
    width: int = 32

    def feature_shape(self) -> tuple[int, ...]:
        return (self.width,)

    def build(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, self.width))

    def batch(self, media: Sequence[Tensor]) -> Tensor:
        return torch.cat([series.view(-1, 16) for series in media])

    def forward(self, module: nn.Sequential, batch: Tensor) -> Tensor:
        rows: Tensor = module(batch.to(module[0].weight.dtype))
        return rows
'''

ENCODER_TEST = '''import torch
from module import Name

from flowengine.api import Sample
from flowengine.testing import check_operator


def test_name_keeps_the_rules() -> None:
    """It pickles; a sample's rows do not depend on its company; every weight gets a gradient."""
    words = torch.zeros(1, dtype=torch.long)
    series = [torch.randn(16 * rows) for rows in (1, 3, 2)]
    samples = [Sample(words, words, media={"series": each}) for each in series]
    check_operator(Name(width=8), samples=samples)
'''

SOURCE = '''"""A source of samples."""

import torch

from flowengine.api import Lengths, Sample, Source


class Name(Source[Sample]):
    """Counts: 1, 2, 3, ... `most` at most, and the model is to go on."""

    most: int = 9

    def lengths(self, index: int) -> Lengths:
        number = 2 + index % (self.most - 1)
        return Lengths(tokens=number, targets=number - 1)

    def read(self, index: int) -> Sample:
        tokens = torch.arange(2 + index % (self.most - 1))
        labels = tokens.clone()
        labels[0] = -100
        return Sample(tokens, labels)
'''

SOURCE_TEST = '''from module import Name

from flowengine.testing import check_operator


def test_name_keeps_the_rules() -> None:
    """It pickles, reads the same sample again, and its lengths are those of its samples."""
    check_operator(Name())
'''

FUNCTION = '''"""An operator on samples."""

from dataclasses import replace

from flowengine.api import Operator, Sample


class Name(Operator):
    """Adds how many tokens a sample has to its notes, under `key`."""

    key: str = "tokens"

    def process(self, sample: Sample) -> Sample:
        return replace(sample, note={**sample.note, self.key: len(sample.tokens)})
'''

FUNCTION_TEST = '''import torch
from module import Name

from flowengine.api import Sample
from flowengine.testing import check_operator


def test_name_keeps_the_rules() -> None:
    """It pickles, its ports have types, and it can be closed twice."""
    check_operator(Name())


def test_name_notes_the_length() -> None:
    """A sample of three tokens says so."""
    words = torch.zeros(3, dtype=torch.long)
    assert Name().process(Sample(words, words)).note == {"tokens": 3}
'''

SKELETONS = {
    "encoder": (ENCODER, ENCODER_TEST),
    "source": (SOURCE, SOURCE_TEST),
    "function": (FUNCTION, FUNCTION_TEST),
}
