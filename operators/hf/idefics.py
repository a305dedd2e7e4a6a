"""Idefics3 (arXiv 2408.12637) and SmolVLM (arXiv 2504.05299): SigLIP, then cells of scale x scale
patches are one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from flowengine.api import Sample
from flowengine.operators.hf.family import Family, check_picture
from flowengine.operators.hf.skeleton import Part
from flowengine.operators.sources.fit import Fit


class Idefics(Family):
    """A picture is scaled to one square (these models' form without splitting into tiles)."""

    vision: ClassVar[Part] = Part(
        ("model.vision_model", "model.connector"), ("model.text_model", "lm_head")
    )
    language: ClassVar[Part] = Part(
        ("model.text_model", "lm_head"), ("model.vision_model", "model.connector")
    )
    text: ClassVar[str] = "model.text_model"

    def fit(self, width: int, height: int) -> Fit:
        del width, height
        vision = self.config.vision_config
        rows = vision.image_size // vision.patch_size // self.config.scale_factor
        tokens = (self.placeholders[0],) * (rows * rows)
        return Fit((vision.image_size,) * 2, (1, rows, rows), tokens)

    def batch(self, media: Sequence[Tensor]) -> Tensor:
        """fp32 [1, items, 3, side, side]."""
        side = self.config.vision_config.image_size
        for picture in media:
            check_picture(picture, sides=f"{side} x {side}", fits=picture.shape[:2] == (side, side))
        return torch.stack([self.normalised(p).permute(2, 0, 1) for p in media])[None]

    def encode(self, model: Any, batch: Tensor) -> Tensor:
        out = model.model.get_image_features(batch.to(model.dtype), return_dict=True)
        return torch.cat(list(out.pooler_output))

    def plain_inputs(self, sample: Sample) -> dict[str, Any]:
        items = sample.items("image")
        return {"pixel_values": self.batch(items)} if items else {}
