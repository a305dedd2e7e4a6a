"""A causal language model over packed samples, with feature rows at the places of placeholders.

Shape letters: T tokens of a pack, C channels, n targets, V words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flowengine.api import IGNORED, Answer, Objective, Pack, TransformerShape
from flowengine.operators.layers import Block, angles, feed_width, initialise, share_blocks
from flowengine.operators.layers.block import EPS

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

EMBEDDED = 0.2
"""The spread of a word's embedding: small, so that what blocks add soon outweighs it."""

TURNING = 0.25
"""The share of a head's channels that rotary positions turn; the rest finds a card by its looks
however far away it is."""


class LanguageTransformer(nn.Module):
    """The logits of a pack's targets [n, V]."""

    def __init__(self, *, vocabulary: int, width: int, depth: int, heads: int, groups: int) -> None:
        super().__init__()
        self.head = width // heads
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            Block(width=width, heads=heads, groups=groups, causal=True, gated=True)
            for _ in range(depth)
        )
        self.norm = nn.RMSNorm(width, eps=EPS)
        self.predict = nn.Linear(width, vocabulary, bias=False)
        initialise(self, depth=depth)
        nn.init.normal_(self.embed.weight, std=EMBEDDED)

    def forward(self, pack: Pack, placeholders: Mapping[str, int], targets: Tensor) -> Tensor:
        x_TC = self.embed(pack.tokens)
        for modality, rows in pack.features.items():
            places = (pack.tokens == placeholders[modality]).nonzero()[:, 0]
            if len(places) != len(rows):
                raise ValueError(
                    f"the pack has {len(places)} placeholders {placeholders[modality]} for "
                    f"'{modality}', but {len(rows)} feature rows; expected one row for each"
                )
            x_TC = x_TC.index_copy(0, places, rows.to(x_TC.dtype))
        turn = self.turns(pack.positions, dtype=x_TC.dtype)
        for block in self.blocks:
            x_TC = block(x_TC, turn, pack.lengths)
        logits: Tensor = self.predict(self.norm(x_TC[targets - 1]))
        return logits

    def turns(self, positions_T: Tensor, *, dtype: torch.dtype) -> Tensor:
        """What rotates queries and keys: complex [T, 1, head / 2]."""
        return angles(positions_T[:, None], width=self.head, dtype=dtype, share=TURNING)


class LanguageModel(Objective[LanguageTransformer]):
    """The cross entropy of every target, given its sample's earlier tokens and features.

    vocabulary: how many token ids there are. placeholders: the token id at whose places the feature
    rows of a modality stand; the rows have `width` channels. groups: key and value heads.
    """

    vocabulary: int
    width: int = 128
    depth: int = 2
    heads: int = 8
    groups: int = 4
    placeholders: Mapping[str, int] = field(default_factory=lambda: {"image": 0})

    def shape(self) -> TransformerShape:
        return TransformerShape(
            layers=self.depth,
            width=self.width,
            heads=self.heads,
            kv_heads=self.groups,
            hidden=feed_width(self.width, gated=True),
            gated=True,
            causal=True,
            vocabulary=self.vocabulary,
        )

    def build(self) -> LanguageTransformer:
        return LanguageTransformer(
            vocabulary=self.vocabulary,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            groups=self.groups,
        )

    def tensor_plan(self) -> dict[str, ParallelStyle]:
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel

        predict = ColwiseParallel(output_layouts=Replicate())
        return {**share_blocks(gated=True), "predict": predict}

    def feature_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self.placeholders, (self.width,))

    def loss(self, module: LanguageTransformer, pack: Pack) -> Tensor:
        targets = _targets(pack)
        logits = module(pack, self.placeholders, targets)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return F.cross_entropy(logits.to(wide), pack.labels[targets], reduction="sum")

    def answers(self, module: LanguageTransformer, pack: Pack) -> list[Answer]:
        targets = _targets(pack)
        predicted = module(pack, self.placeholders, targets).argmax(-1)
        ends = torch.tensor(list(accumulate(pack.lengths)), device=targets.device)
        cuts = torch.searchsorted(targets, ends)[:-1].tolist()
        return [
            Answer(predicted=guess, expected=truth, note=note)
            for guess, truth, note in zip(
                predicted.tensor_split(cuts),
                pack.labels[targets].tensor_split(cuts),
                pack.notes,
                strict=True,
            )
        ]


def _targets(pack: Pack) -> Tensor:
    """The places of the targets in the pack: int64 [n]."""
    return (pack.labels != IGNORED).nonzero()[:, 0]
