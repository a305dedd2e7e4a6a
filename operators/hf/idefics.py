"""Idefics3 (arXiv 2408.12637) and SmolVLM (arXiv 2504.05299): SigLIP, then cells of scale x scale
patches are one row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from flowengine.api import Sample
from flowengine.operators.hf.family import Family, check_picture
from flowengine.operators.hf.skeleton import Part
from flowengine.operators.sources.fit import BICUBIC, Fit

FAKE = "<fake_token_around_image>"
MOST = 4096
"""Pixels of a side, at most, before tiles are cut."""


class Idefics(Family):
    """A picture is scaled to one square; or, where preprocessor_config.json says
    do_image_splitting, to several, which come with a small one of the whole."""

    vision: ClassVar[Part] = Part(
        ("model.vision_model", "model.connector"), ("model.text_model", "lm_head")
    )
    language: ClassVar[Part] = Part(
        ("model.text_model", "lm_head"), ("model.vision_model", "model.connector")
    )
    text: ClassVar[str] = "model.text_model"

    def fit(self, width: int, height: int) -> Fit:
        side, settings = int(self.config.vision_config.image_size), self.preprocessing
        tile = settings.get("max_image_size", {}).get("longest_edge", side)
        if tile != side:
            raise ValueError(
                f"checkpoint {self.path}: its preprocessor cuts tiles of {tile} pixels, its "
                f"encoder has pictures of {side}; expected the same"
            )
        longest = settings.get("size", {}).get("longest_edge")
        first = (height, width) if longest is None else _with_longest(height, width, longest)
        rows, columns = (1, 1)
        if settings.get("do_image_splitting", False):
            rows, columns = _whole_tiles(*first, side)
        return self._fit(rows, columns, via=(first[1], first[0]))

    def fit_clip(self, width: int, height: int, frames: int) -> tuple[Fit, ...]:
        """Every frame as a picture that is not cut."""
        del width, height
        return (self._fit(1, 1, via=None),) * frames

    def _fit(self, rows: int, columns: int, *, via: tuple[int, int] | None) -> Fit:
        side = int(self.config.vision_config.image_size)
        cells = side // self.config.vision_config.patch_size // self.config.scale_factor
        is_cut = rows * columns > 1
        return Fit(
            size=(columns * side, rows * side),
            grid=(rows * columns + is_cut, cells, cells),
            tokens=self._prompt(rows, columns, count=cells * cells),
            via=() if via is None else (via,),
            resample=self.preprocessing.get("resample", BICUBIC),
            tiles=(rows, columns) if is_cut else None,
        )

    def _prompt(self, rows: int, columns: int, *, count: int) -> tuple[int, ...]:
        """What stands for a picture: tiles by row and column, then the whole; without a tokenizer
        the placeholders alone."""
        key = (rows, columns)
        if key not in self._prompts:
            self._prompts[key] = self._make_prompt(rows, columns, count)
        return self._prompts[key]

    def _make_prompt(self, rows: int, columns: int, count: int) -> tuple[int, ...]:
        image = "<image>" * count
        whole = f"{FAKE}<global-img>{image}{FAKE}"
        if rows * columns == 1:
            if self._tokenizer is None:
                return (self.placeholders[0],) * count
            text = whole
        else:
            lines = (
                "".join(
                    f"{FAKE}<row_{row + 1}_col_{column + 1}>{image}" for column in range(columns)
                )
                for row in range(rows)
            )
            text = "".join(f"{line}\n" for line in lines) + f"\n{whole}"
        ids = self.words(text, wanted_for="the marks of tiles")
        parts = rows * columns + (rows * columns > 1)
        if ids.count(self.placeholders[0]) != parts * count:
            raise ValueError(
                f"checkpoint {self.path}: its tokenizer has another id for <image> than "
                f"image_token_id = {self.placeholders[0]}; expected the same"
            )
        return ids

    @cached_property
    def _prompts(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {}

    def batch(self, media: Sequence[Tensor]) -> Tensor:
        """fp32 [1, items, 3, side, side]; of tiles each is an item."""
        side = self.config.vision_config.image_size
        for picture in media:
            fits = tuple(picture.shape[-3:-1]) == (side, side)
            check_picture(picture, sides=f"{side} x {side}", fits=fits)
        items = torch.cat([picture.reshape(-1, side, side, 3) for picture in media])
        return self.normalised(items).permute(0, 3, 1, 2)[None]

    def encode(self, model: Any, batch: Tensor) -> Tensor:
        out = model.model.get_image_features(batch.to(model.dtype), return_dict=True)
        return torch.cat(list(out.pooler_output))

    def plain_inputs(self, sample: Sample) -> dict[str, Any]:
        items = sample.items("image")
        return {"pixel_values": self.batch(items)} if items else {}


def _with_longest(height: int, width: int, longest: int) -> tuple[int, int]:
    """Height and width with a longest side of `longest`, at most MOST; the other one is even."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    ratio = width / height
    if width >= height and width > MOST:
        width, height = MOST, int(MOST / ratio)
    elif height > width and height > MOST:
        height, width = MOST, int(MOST * ratio)
    return max(height, 1), max(width, 1)


def _whole_tiles(height: int, width: int, side: int) -> tuple[int, int]:
    """Rows and columns of tiles: the longer side's first, the other's from what it becomes."""
    ratio = width / height
    if width >= height:
        columns = math.ceil(width / side)
        return math.ceil(int(columns * side / ratio) / side), columns
    rows = math.ceil(height / side)
    return rows, math.ceil(int(rows * side * ratio) / side)
