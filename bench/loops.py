"""The loops that people write: one process, padded batches or packed ones, on the digit cards.

Both train the operators of graphs/digit_cards.py with its optimizers and clipping, and differ from
the graph in nothing but how the work is laid out. Each is a generator: one item per step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from plain_loop import make_rig
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from flowengine.api import IGNORED, Sample, Source
from flowengine.graphs.digit_cards import build
from flowengine.operators.layers import angles

PLACEHOLDER = 0
MICROBATCH = 16
"""Samples per padded batch: four to a step, about as many as there are packs."""


@dataclass
class Padded:
    """A microbatch with every sample as long as the longest.

    tokens, labels: [B, T]. pixels: uint8 [B, P, patch], places: [B, P, 2], real: bool [B, P].
    """

    tokens: Tensor
    labels: Tensor
    pixels: Tensor
    places: Tensor
    real: Tensor


def packed_loop(*, steps: int, seed: int) -> Iterator[float]:
    """Trains with the graph's packs; the loss of every step."""
    rig, source, samples = make_rig(build(steps=steps, seed=seed))
    for step in range(steps):
        yield rig.train_step(source, step=step, samples=samples).loss


def padded_loop(*, steps: int, seed: int) -> Iterator[float]:
    """Trains with padded batches in arrival order, fed by a DataLoader with one worker."""
    rig, source, samples = make_rig(build(steps=steps, seed=seed))
    loader = DataLoader(
        _Steps(source, rig.encoder, steps=steps, samples=samples),
        batch_size=None,
        num_workers=1,
        prefetch_factor=2,
    )
    for step, batches in enumerate(loader):
        targets = sum(int((batch.labels != IGNORED).sum()) for batch in batches)
        total = 0.0
        for batch in batches:
            loss = padded_loss(rig.modules[0], rig.modules[1], batch) / targets
            torch.autograd.backward(loss)
            total += float(loss.detach())
        rig.update(step)
        yield total


def padded_loss(vision: Any, language: Any, batch: Padded) -> Tensor:
    """The summed loss of one padded batch; the same mathematics as the packed operators'."""
    rows = see(vision, batch)
    x_BTC = language.embed(batch.tokens)
    x_BTC = x_BTC.masked_scatter((batch.tokens == PLACEHOLDER)[..., None], rows.to(x_BTC.dtype))
    count, length = batch.tokens.shape
    positions = torch.arange(length).repeat(count)
    turn = language.turns(positions, dtype=x_BTC.dtype)
    future = torch.ones(length, length, dtype=torch.bool).tril()
    for block in language.blocks:
        x_BTC = attend_padded(block, x_BTC, turn, future)
    wanted = batch.labels[:, 1:] != IGNORED
    logits = language.predict(language.norm(x_BTC[:, :-1][wanted]))
    return F.cross_entropy(logits.float(), batch.labels[:, 1:][wanted], reduction="sum")


def see(vision: Any, batch: Padded) -> Tensor:
    """Feature rows of all real cells of a padded batch, sample by sample: [N, output]."""
    x_BPC = vision.look(batch.pixels)
    turn = angles(batch.places.flatten(0, 1), width=vision.head, dtype=x_BPC.dtype)
    for block in vision.blocks:
        x_BPC = attend_padded(block, x_BPC, turn, batch.real[:, None, None])
    rows: Tensor = vision.merged(x_BPC[batch.real])
    return rows


def attend_padded(block: Any, x_BTC: Tensor, turn: Tensor, mask: Tensor) -> Tensor:
    """A transformer block on a padded batch, through torch's fused attention with a mask."""
    count, length, _ = x_BTC.shape
    heads = block.heads_of(x_BTC.flatten(0, 1), turn)
    q, k, v = (part.unflatten(0, (count, length)).transpose(1, 2) for part in heads)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    x_BTC = x_BTC + block.out(out.transpose(1, 2).flatten(2))
    fed: Tensor = x_BTC + block.feed(x_BTC)
    return fed


class _Steps(Dataset[list[Padded]]):
    """Item s: the padded microbatches of step s."""

    def __init__(self, source: Source[Sample], encoder: Any, *, steps: int, samples: int) -> None:
        self._source, self._encoder = source, encoder
        self._steps, self._samples = steps, samples

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> list[Padded]:
        indices = range(step * self._samples, (step + 1) * self._samples)
        samples = [self._source.read(index) for index in indices]
        starts = range(0, len(samples), MICROBATCH)
        return [self._collate(samples[start : start + MICROBATCH]) for start in starts]

    def _collate(self, samples: Sequence[Sample]) -> Padded:
        pictures = [self._encoder.batch([sample.media["image"]]) for sample in samples]
        return Padded(
            tokens=_pad([sample.tokens for sample in samples], 1),
            labels=_pad([sample.labels for sample in samples], IGNORED),
            pixels=_pad([picture.pixels for picture in pictures], 0),
            places=_pad([picture.places for picture in pictures], 0),
            real=_pad([torch.ones(len(p.pixels), dtype=torch.bool) for p in pictures], 0),
        )


def _pad(parts: list[Tensor], value: int) -> Tensor:
    return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value)
