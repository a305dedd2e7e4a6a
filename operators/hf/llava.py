"""LLaVA (arXiv 2304.08485, 2310.03744): CLIP or SigLIP, a projector, any causal language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from flowengine.api import Sample
from flowengine.operators.hf.family import Family, check_picture
from flowengine.operators.hf.skeleton import Part
from flowengine.operators.sources.fit import Fit


class Llava(Family):
    """Every picture is scaled to one size, and has the same number of rows."""

    vision: ClassVar[Part] = Part(
        ("model.vision_tower", "model.multi_modal_projector"), ("model.language_model", "lm_head")
    )
    language: ClassVar[Part] = Part(
        ("model.language_model", "lm_head"), ("model.vision_tower", "model.multi_modal_projector")
    )
    text: ClassVar[str] = "model.language_model"

    def fit(self, width: int, height: int) -> Fit:
        del width, height
        side, rows = self._side, self._side // self.config.vision_config.patch_size
        extra = self._has_class_row and self.config.vision_feature_select_strategy == "full"
        count = rows * rows + extra
        return Fit((side, side), (1, 1, count), (self.placeholders[0],) * count)

    def batch(self, media: Sequence[Tensor]) -> Tensor:
        """fp32 [items, 3, side, side]."""
        side = self._side
        for picture in media:
            check_picture(picture, sides=f"{side} x {side}", fits=picture.shape[:2] == (side, side))
        return torch.stack([self.normalised(picture).permute(2, 0, 1) for picture in media])

    def encode(self, model: Any, batch: Tensor) -> Tensor:
        out = model.model.get_image_features(
            batch.to(model.dtype),
            vision_feature_layer=self.config.vision_feature_layer,
            vision_feature_select_strategy=self.config.vision_feature_select_strategy,
            return_dict=True,
        )
        return torch.cat(list(out.pooler_output))

    def plain_inputs(self, sample: Sample) -> dict[str, Any]:
        items = sample.items("image")
        return {"pixel_values": self.batch(items)} if items else {}

    @property
    def _side(self) -> int:
        return int(self.config.vision_config.image_size)

    @property
    def _has_class_row(self) -> bool:
        return str(self.config.vision_config.model_type).startswith("clip")
