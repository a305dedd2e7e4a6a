"""Conversations with pictures and clips from any data set, as samples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flowengine.api import IGNORED, Lengths, Sample, SampleError, Source
from flowengine.operators.sources.fit import Fit, Fitting
from flowengine.operators.sources.pictures import read_part, read_size
from flowengine.operators.sources.records import (
    CLIP_MARKER,
    MARKER,
    Blob,
    Clip,
    Record,
    Records,
)
from flowengine.operators.sources.template import Template, encode

_Part = tuple[Fit, tuple[Blob, ...]]

REMEMBERED = 4096
"""Samples whose tokens are kept from `lengths` until `read`."""


@dataclass(frozen=True)
class _Encoded:
    """parts: how all media enter the model, in the order of the text, and what of them it is."""

    record: Record
    parts: tuple[_Part, ...]
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
        rows = sum(fit.rows for fit, _ in encoded.parts)
        targets = sum(label != IGNORED for label in encoded.labels)
        media = {"image": rows} if rows else {}
        pixels = sum(fit.num_pixels for fit, _ in encoded.parts)
        return Lengths(
            tokens=len(encoded.tokens),
            targets=targets,
            media=media,
            sizes={"images": len(encoded.parts), "image bytes": 3 * pixels},
        )

    def read(self, index: int) -> Sample:
        encoded = self._memory().pop(index, None) or self._encode(index)
        pictures = []
        for fit, blobs in encoded.parts:
            with _naming(encoded.record, index):
                pictures.append(read_part(blobs, fit, max_pixels=self.max_pixels))
        return Sample(
            tokens=torch.tensor(encoded.tokens),
            labels=torch.tensor(encoded.labels),
            media={"image": tuple(pictures)} if pictures else {},
            note=dict(encoded.record.note),
            grids={"image": torch.tensor([f.grid for f, _ in encoded.parts])} if pictures else {},
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
            parts = {MARKER: [self._fit(picture) for picture in record.pictures]}
            if record.clips:
                parts[CLIP_MARKER] = [self._fit_clip(clip) for clip in record.clips]
            tokens, labels = encode(
                record.turns,
                {mark: [[fit for fit, _ in part] for part in each] for mark, each in parts.items()},
                tokenizer=self.tokenizer,
                template=self.template,
            )
            ordered = tuple(_in_order(record, parts))
            self._check(tokens, labels, [fit for fit, _ in ordered])
        return _Encoded(record, ordered, tokens, labels)

    def _fit(self, blob: Blob) -> list[_Part]:
        size = read_size(blob, max_pixels=self.max_pixels)
        return [(self._rule.fit(*size), (blob,))]

    def _fit_clip(self, clip: Clip) -> list[_Part]:
        size = read_size(clip.frames[0], max_pixels=self.max_pixels)
        parts, left = [], iter(clip.frames)
        for fit in self._rule.fit_clip(*size, len(clip.frames)):
            parts.append((fit, tuple(islice(left, fit.frames or 1))))
        return parts

    @property
    def _rule(self) -> Fitting:
        if self.pictures is None:
            raise ValueError("it has pictures; give pictures=")
        return self.pictures

    def _check(self, tokens: list[int], labels: list[int], fits: list[Fit]) -> None:
        if self.max_tokens is not None and len(tokens) > self.max_tokens:
            raise ValueError(f"it has {len(tokens)} tokens, max_tokens is {self.max_tokens}")
        if all(label == IGNORED for label in labels):
            raise ValueError("it has no target: no assistant's turn with words in it")
        for placeholder in self.pictures.placeholders if self.pictures is not None else ():
            found = tokens.count(placeholder)
            wanted = sum(fit.tokens.count(placeholder) for fit in fits)
            if found != wanted:
                raise ValueError(
                    f"its text holds the placeholder {placeholder} itself, "
                    f"{found - wanted} times; expected it to stand for pictures alone"
                )

    def _memory(self) -> dict[int, _Encoded]:
        memory: dict[int, _Encoded] = self.__dict__.setdefault("_encoded", {})
        while len(memory) > REMEMBERED:
            del memory[next(iter(memory))]
        return memory

    def close(self) -> None:
        self.__dict__.pop("_encoded", None)


def _in_order(record: Record, parts: Mapping[str, list[list[_Part]]]) -> Iterator[_Part]:
    """The parts of all media as their markers follow each other in the text."""
    left = {marker: iter(each) for marker, each in parts.items()}
    marks = re.compile("|".join(map(re.escape, parts)))
    for turn in record.turns:
        for mark in marks.findall(turn.text):
            yield from next(left[mark])


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
