"""A vision transformer for pictures of any size, without resizing or padding.

After Qwen2-VL's (arXiv 2409.12191): a picture is a sequence of patches; a patch sees the patches
of its own picture; two-dimensional rotary positions; at the end every 2 x 2 patches are merged
into one feature row.

Shape letters: P patches of all pictures, N = P / 4 rows, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flowengine.api import Encoder, TransformerShape
from flowengine.operators.layers import Block, angles, feed_width, initialise, share_blocks
from flowengine.operators.layers.block import EPS

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

PATCH = 8
MERGE = 2
CELL = PATCH * MERGE
PAPER, SPREAD = 200.0, 32.0
"""Taken from every pixel, and what the rest is divided by."""

FLAT = 0.3
"""The weight of a patch's mean colour against what is drawn on it. Colour is most of a page's
variance: with 1 the encoder learns it first, and then not a digit in 200 steps."""


@dataclass(frozen=True)
class Patches:
    """The patches of several pictures.

    pixels: uint8 [P, PATCH * PATCH * 3], cell by cell in raster order, and so within a cell.
    places: int64 [P, 2], row and column in the picture.
    lengths: patches per picture, sums to P.
    """

    pixels: Tensor
    places: Tensor
    lengths: tuple[int, ...]


class VisionTransformer(nn.Module):
    """Patches to feature rows [N, output]."""

    def __init__(self, *, width: int, depth: int, heads: int, output: int) -> None:
        super().__init__()
        self.head = width // heads
        self.embed = nn.Linear(PATCH * PATCH * 3, width)
        self.blocks = nn.ModuleList(
            Block(width=width, heads=heads, groups=heads, causal=False, gated=False)
            for _ in range(depth)
        )
        self.norm = nn.RMSNorm(width, eps=EPS)
        self.merge = nn.Linear(MERGE * MERGE * width, output)
        self.project = nn.Linear(output, output)
        initialise(self, depth=depth)
        # A flat patch of the paper's shade would be zero in every layer, where norms have no slope.
        nn.init.normal_(self.embed.bias, std=0.1)

    def forward(self, patches: Patches) -> Tensor:
        x_PC = self.look(patches.pixels)
        turn = angles(patches.places, width=self.head, dtype=x_PC.dtype)
        for block in self.blocks:
            x_PC = block(x_PC, turn, patches.lengths)
        return self.merged(x_PC)

    def look(self, pixels: Tensor) -> Tensor:
        """Pixels [..., patch] to the first residual [..., C]."""
        x = pixels.to(self.embed.weight.dtype).sub_(PAPER).div_(SPREAD)
        x = x.reshape(*x.shape[:-1], -1, 3)
        x = x - (1 - FLAT) * x.mean(-2, keepdim=True)
        first: Tensor = self.embed(x.flatten(-2))
        return first

    def merged(self, x_PC: Tensor) -> Tensor:
        """The last residual of all patches to feature rows [N, output]."""
        merged = self.merge(self.norm(x_PC).view(-1, MERGE * MERGE * x_PC.shape[1]))
        rows: Tensor = self.project(F.gelu(merged))
        return rows


class VisionEncoder(Encoder[VisionTransformer, Patches]):
    """One feature row of `output` channels per 16 x 16 pixels, in raster order.

    Reads uint8 [H, W, 3]; H and W are multiples of 16.
    """

    width: int = 64
    depth: int = 3
    heads: int = 2
    output: int = 128
    modality: ClassVar[str] = "image"

    def feature_shape(self) -> tuple[int, ...]:
        return (self.output,)

    def shape(self) -> TransformerShape:
        return TransformerShape(
            layers=self.depth,
            width=self.width,
            heads=self.heads,
            hidden=feed_width(self.width, gated=False),
            positions_per_row=MERGE * MERGE,
            row_weights=(MERGE * MERGE * self.width + self.output) * self.output,
            position_weights=PATCH * PATCH * 3 * self.width,
        )

    def build(self) -> VisionTransformer:
        return VisionTransformer(
            width=self.width, depth=self.depth, heads=self.heads, output=self.output
        )

    def tensor_plan(self) -> dict[str, ParallelStyle]:
        return share_blocks(gated=False)

    def batch(self, media: Sequence[Tensor]) -> Patches:
        places = [_places(picture) for picture in media]
        return Patches(
            pixels=torch.cat([_patches(picture) for picture in media]),
            places=torch.cat(places),
            lengths=tuple(len(place) for place in places),
        )

    def forward(self, module: VisionTransformer, batch: Patches) -> Tensor:
        rows: Tensor = module(batch)
        return rows


def _patches(picture: Tensor) -> Tensor:
    """[H, W, 3] to [P, PATCH * PATCH * 3]."""
    height, width, _ = picture.shape
    if height % CELL or width % CELL:
        raise ValueError(
            f"vision: a picture has {height} x {width} pixels; expected sides that are multiples "
            f"of {CELL}"
        )
    split = picture.view(height // CELL, MERGE, PATCH, width // CELL, MERGE, PATCH, 3)
    return split.permute(0, 3, 1, 4, 2, 5, 6).reshape(-1, PATCH * PATCH * 3)


def _places(picture: Tensor) -> Tensor:
    """Row and column of every patch, in the order of `_patches`: int64 [P, 2]."""
    height, width = picture.shape[0] // PATCH, picture.shape[1] // PATCH
    row = torch.arange(height, device=picture.device).view(-1, 1, MERGE, 1)
    column = torch.arange(width, device=picture.device).view(1, -1, 1, MERGE)
    grid = (height // MERGE, width // MERGE, MERGE, MERGE)
    return torch.stack((row.expand(grid), column.expand(grid)), dim=-1).view(-1, 2)
