"""Digit cards with a sound: a clip of beeps beside the picture, and questions about either or both.

A clip has one to four beeps of one pitch, low or high, in noise. Questions, one word each:

    how many beeps 3      which pitch high      match yes      (as many beeps as cards?)

`match` can only be answered from both modalities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from flowengine.api import IGNORED, Lengths, Sample, Source
from flowengine.operators.sources.digit_cards import WORDS, DigitCards, Page, Question, draw

SOUND_WORDS = (*WORDS, "<audio>", "beeps", "pitch", "low", "high", "match")
RATE = 16_000
BEEP, PAUSE = RATE // 10, RATE // 12
"""Samples of a beep and of the silence after it."""

SAMPLES_PER_ROW = 160 * 2 * 4
"""What `AudioEncoder` makes one row of, with its default stack."""


class SoundCards(Source[Sample]):
    """Digit cards' pages, each with a clip of 0.2 to 0.8 seconds, without end.

    split, seed: as for DigitCards. Held-out samples ask one question.
    """

    split: Literal["train", "held-out"] = "train"
    seed: int = 0
    median_cells: float = 9.0

    placeholders: ClassVar[dict[str, int]] = {"image": 0, "audio": SOUND_WORDS.index("<audio>")}
    vocabulary: ClassVar[int] = len(SOUND_WORDS)

    def lengths(self, index: int) -> Lengths:
        card = self._card(index)
        tokens, labels = _sequence(card.rows, card.questions)
        targets = sum(label != IGNORED for label in labels)
        return Lengths(tokens=len(tokens), targets=targets, media=card.rows)

    def read(self, index: int) -> Sample:
        card = self._card(index)
        tokens, labels = _sequence(card.rows, card.questions)
        return Sample(
            tokens=torch.tensor(tokens),
            labels=torch.tensor(labels),
            media={"image": torch.from_numpy(draw(card.page)), "audio": _clip(card)},
            note={"kind": card.questions[0][0], "index": index},
        )

    def _card(self, index: int) -> _Card:
        """What sample `index` shows, plays and asks; nothing is drawn."""
        pages = DigitCards(
            split=self.split, seed=self.seed, questions=2, median_cells=self.median_cells
        )
        page = pages.page(index)
        key = np.array([self.seed << 1 | (self.split == "held-out"), index], dtype=np.uint64)
        random = np.random.Generator(np.random.Philox(key=key + np.uint64(1 << 32)))
        beeps, high = int(random.integers(1, 5)), bool(random.integers(2))
        if random.random() < 0.5:
            beeps = min(len(page.cards), 4)
        questions = [
            ("beeps", "how many beeps", str(beeps)),
            ("pitch", "which pitch", "high" if high else "low"),
            ("match", "match", "yes" if beeps == len(page.cards) else "no"),
        ]
        asked = [questions[i] for i in random.permutation(3)]
        asked = asked[:1] if self.split == "held-out" else [*asked, *page.questions]
        return _Card(page, beeps, high, int(random.integers(1 << 32)), tuple(asked))


@dataclass(frozen=True)
class _Card:
    page: Page
    beeps: int
    high: bool
    noise: int
    questions: tuple[Question, ...]

    @property
    def rows(self) -> dict[str, int]:
        """Feature rows per modality."""
        sound = -(-self.beeps * (BEEP + PAUSE) // SAMPLES_PER_ROW)
        return {"audio": sound, "image": self.page.rows * self.page.columns}


def _clip(card: _Card) -> Tensor:
    """fp32 [num_samples] in [-1, 1]."""
    random = np.random.default_rng(card.noise)
    hertz = (1500 if card.high else 400) * random.uniform(0.9, 1.1)
    beep = 0.5 * np.sin(2 * np.pi * hertz * np.arange(BEEP) / RATE) * np.hanning(BEEP)
    clip = np.concatenate([np.pad(beep, (0, PAUSE))] * card.beeps)
    return torch.from_numpy((clip + 0.01 * random.standard_normal(len(clip))).astype(np.float32))


def _sequence(
    rows: Mapping[str, int], questions: Sequence[Question]
) -> tuple[list[int], list[int]]:
    """Placeholders, then questions with their answers; labels at the answers alone."""
    placeholders = SoundCards.placeholders
    tokens = [placeholders[name] for name in ("audio", "image") for _ in range(rows[name])]
    labels = [IGNORED] * len(tokens)
    for _, text, answer in questions:
        words = [SOUND_WORDS.index(word) for word in text.split()]
        target = SOUND_WORDS.index(answer)
        tokens += [*words, target]
        labels += [IGNORED] * len(words) + [target]
    return tokens, labels
