"""The vision encoder of a pretrained vision-language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from flowengine.api import Encoder, TransformerShape
from flowengine.operators.hf.families import family_of
from flowengine.operators.hf.shapes import vision_shape
from flowengine.operators.hf.tuning import LoRA, load_tuned, origin_of


class PretrainedVision(Encoder[Any, Any]):
    """Pictures, uint8 [H, W, 3], and clips, [F, H, W, 3], to what the language model reads.

    Loads the encoder and its projector, and nothing else of the model.

    checkpoint: a local directory as save_pretrained writes it. frozen: parameters whose name in the
    whole model starts with one of these keep their values (graph.add(freeze=True) keeps all of
    them). lora: trains adapters instead of the weights. checkpointing: compute every layer's
    activations again in the backward instead of keeping them.

    A sample's pictures stand in `Sample.media["image"]`, scaled to the size that `fit` of
    `family_of(checkpoint)` gives, and their layout in `Sample.grids["image"]`.
    """

    checkpoint: str
    frozen: Sequence[str] = ()
    lora: LoRA | None = None
    checkpointing: bool = False
    modality: ClassVar[str] = "image"

    def feature_shape(self) -> tuple[int, ...]:
        return family_of(self.checkpoint).feature_shape()

    def shape(self) -> TransformerShape:
        return vision_shape(self.checkpoint)

    def build(self) -> Any:
        family = family_of(self.checkpoint)
        return load_tuned(
            self.checkpoint,
            family.vision,
            frozen=self.frozen,
            lora=self.lora,
            checkpointing=self.checkpointing,
        )

    def origin(self, module: Any) -> dict[str, str]:
        return origin_of(self.checkpoint, module)

    def batch(self, media: Sequence[Tensor]) -> Any:
        return family_of(self.checkpoint).batch(media)

    def forward(self, module: Any, batch: Any) -> Tensor:
        return family_of(self.checkpoint).encode(module, batch)
