"""Conversations with pictures from any data set, as samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flowengine.api import IGNORED, Lengths, Sample, SampleError, Source
from flowengine.operators.sources.fit import Fit, Fitting
from flowengine.operators.sources.pictures import read_pixels, read_size
from flowengine.operators.sources.records import Record, Records
from flowengine.operators.sources.template import Template, encode

REMEMBERED = 4096
"""Samples whose tokens are kept from `lengths` until `read`."""


@dataclass(frozen=True)
class _Encoded:
    record: Record
    fits: tuple[Fit, ...]
    tokens: list[int]
    labels: list[int]


class Conversations(Source[Sample]):
    """Sample i is a record of `records`, tokenised, with its pictures scaled to their final size.

    tokenizer: of transformers or tokenizers. pictures: the model's rule for them, such as
    PretrainedPictures(checkpoint=...); None for text alone.
    seed: shuffles, every epoch anew; None keeps the order. epochs: None goes on without end.
    max_tokens: longer samples are refused. max_pixels: larger pictures are, before decoding.

    A record that cannot be trained on raises SampleError, which names it: a broken picture, one
    with too many pixels, too many tokens, no target. The error is raised where the step is
    planned, but for a picture whose header is right and whose body is not.
    """

    records: Records
    tokenizer: Any = field(repr=False)
    pictures: Fitting | None = None
    template: Template = Template()
    seed: int | None = None
    epochs: int | None = 1
    max_tokens: int | None = None
    max_pixels: int = 1 << 26

    def num_samples(self) -> int | None:
        return None if self.epochs is None else self.epochs * len(self.records)

    def lengths(self, index: int) -> Lengths:
        encoded = self._encode(index)
        self._memory()[index] = encoded
        rows = sum(fit.rows for fit in encoded.fits)
        targets = sum(label != IGNORED for label in encoded.labels)
        media = {"image": rows} if rows else {}
        pixels = sum(fit.size[0] * fit.size[1] for fit in encoded.fits)
        return Lengths(
            tokens=len(encoded.tokens),
            targets=targets,
            media=media,
            sizes={"images": len(encoded.fits), "image bytes": 3 * pixels},
        )

    def read(self, index: int) -> Sample:
        encoded = self._memory().pop(index, None) or self._encode(index)
        pictures = []
        for blob, fit in zip(encoded.record.pictures, encoded.fits, strict=True):
            with _naming(encoded.record, index):
                pictures.append(read_pixels(blob, size=fit.size, max_pixels=self.max_pixels))
        return Sample(
            tokens=torch.tensor(encoded.tokens),
            labels=torch.tensor(encoded.labels),
            media={"image": tuple(pictures)} if pictures else {},
            note=dict(encoded.record.note),
            grids={"image": torch.tensor([fit.grid for fit in encoded.fits])} if pictures else {},
        )

    def place(self, index: int) -> int:
        """The number of the record that sample `index` is."""
        epoch, place = divmod(index, len(self.records))
        if self.seed is None:
            return place
        return int(_order(self.seed, epoch, len(self.records))[place])

    def _encode(self, index: int) -> _Encoded:
        record = self.records[self.place(index)]
        with _naming(record, index):
            fits = tuple(self._fit(record))
            tokens, labels = encode(
                record.turns, fits, tokenizer=self.tokenizer, template=self.template
            )
            self._check(tokens, labels, fits)
        return _Encoded(record, fits, tokens, labels)

    def _fit(self, record: Record) -> Iterator[Fit]:
        if record.pictures and self.pictures is None:
            raise ValueError(f"it has {len(record.pictures)} pictures; give pictures=")
        for blob in record.pictures:
            assert self.pictures is not None
            yield self.pictures.fit(*read_size(blob, max_pixels=self.max_pixels))

    def _check(self, tokens: list[int], labels: list[int], fits: tuple[Fit, ...]) -> None:
        if self.max_tokens is not None and len(tokens) > self.max_tokens:
            raise ValueError(f"it has {len(tokens)} tokens, max_tokens is {self.max_tokens}")
        if all(label == IGNORED for label in labels):
            raise ValueError("it has no target: no assistant's turn with words in it")
        if self.pictures is not None:
            found = tokens.count(self.pictures.placeholder)
            wanted = sum(fit.tokens.count(self.pictures.placeholder) for fit in fits)
            if found != wanted:
                raise ValueError(
                    f"its text holds the placeholder {self.pictures.placeholder} itself, "
                    f"{found - wanted} times; expected it to stand for pictures alone"
                )

    def _memory(self) -> dict[int, _Encoded]:
        memory: dict[int, _Encoded] = self.__dict__.setdefault("_encoded", {})
        while len(memory) > REMEMBERED:
            del memory[next(iter(memory))]
        return memory

    def close(self) -> None:
        self.__dict__.pop("_encoded", None)


@contextmanager
def _naming(record: Record, index: int) -> Iterator[None]:
    """What is wrong with a record is said with its name."""
    try:
        yield
    except SampleError:
        raise
    except ValueError as error:
        raise SampleError(f"sample {index}, {record.where}: {error}") from None


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, number: int) -> NDArray[np.int64]:
    """The order of an epoch: a permutation that is a function of seed and epoch."""
    key = np.array([seed, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(number)
