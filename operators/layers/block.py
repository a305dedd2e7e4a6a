"""A pre-norm transformer block over packed segments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flowengine.operators.layers.attention import attend
from flowengine.operators.layers.rotation import rotate

EPS = 1e-4
"""Added to the mean square of a row; a flat patch, all zero, is multiplied by 100 at most."""


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a root-mean-square norm and a residual.

    gated: SwiGLU (arXiv 2002.05202) of 8/3 * width; else GELU of 4 * width: the same weights.
    """

    def __init__(self, *, width: int, heads: int, groups: int, causal: bool, gated: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.causal, self.gated = heads, groups, causal, gated
        head = width // heads
        hidden = feed_width(width, gated=gated)
        self.before_attention = nn.RMSNorm(width, eps=EPS)
        self.qkv = nn.Linear(width, (heads + 2 * groups) * head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.before_feed = nn.RMSNorm(width, eps=EPS)
        self.up = nn.Linear(width, 2 * hidden if gated else hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_TC: Tensor, turn_T1P: Tensor, lengths: Sequence[int]) -> Tensor:
        q, k, v = self.heads_of(x_TC, turn_T1P)
        seen = attend(q, k, v, lengths, causal=self.causal)
        x_TC = x_TC + self.out(seen.flatten(1))
        return x_TC + self.feed(x_TC)

    def heads_of(self, x_TC: Tensor, turn_T1P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, heads, D], and keys and values [T, groups, D]."""
        width = 2 * turn_T1P.shape[-1]
        heads = self.qkv(self.before_attention(x_TC)).unflatten(-1, (-1, width))
        turned, v = torch.split(heads, [self.heads + self.groups, self.groups], dim=1)
        turned = rotate(turned, turn_T1P)
        q, k = torch.split(turned, [self.heads, self.groups], dim=1)
        return q, k, v

    def feed(self, x_TC: Tensor) -> Tensor:
        """What the feed-forward layer adds."""
        up = self.up(self.before_feed(x_TC))
        if not self.gated:
            added: Tensor = self.down(F.gelu(up))
            return added
        gate, value = up.chunk(2, dim=-1)
        added = self.down(F.silu(gate) * value)
        return added


def feed_width(width: int, *, gated: bool) -> int:
    """Channels within the feed-forward layer."""
    return 8 * width // 3 if gated else 4 * width


def initialise(module: nn.Module, *, depth: int) -> None:
    """Normal weights of variance 1 / inputs, but smaller where a block adds to the residual."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            scale = (2 * depth) ** -0.5 if name.endswith((".out", ".down")) else 1.0
            nn.init.normal_(part.weight, std=scale * part.in_features**-0.5)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
