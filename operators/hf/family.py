"""What differs between families of vision-language models: how pictures become patches, where the
weights are, and what the language model wants beside its embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from flowengine.api import Pack, Sample
from flowengine.operators.hf.checkpoint import Checkpoint, read_config
from flowengine.operators.hf.skeleton import Part
from flowengine.operators.sources.fit import Fit


class Family(ABC):
    """One family, for one checkpoint. text: where the language model is in the whole model."""

    vision: ClassVar[Part]
    language: ClassVar[Part]
    text: ClassVar[str]

    def __init__(self, path: str) -> None:
        self.path = path
        self.config = read_config(path)
        self.preprocessing = Checkpoint(path).json("preprocessor_config.json")

    @property
    def width(self) -> int:
        """The language model's width."""
        return int(self.config.text_config.hidden_size)

    @property
    def placeholders(self) -> tuple[int, ...]:
        """The token ids at whose places feature rows stand."""
        return (int(self.config.image_token_id),)

    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one feature row."""
        return (self.width,)

    @abstractmethod
    def fit(self, width: int, height: int) -> Fit:
        """How a picture of this size in pixels enters the model."""

    def fit_clip(self, width: int, height: int, frames: int) -> tuple[Fit, ...]:
        """How a clip of so many frames does; here every frame as a picture."""
        return (self.fit(width, height),) * frames

    def words(self, text: str, *, wanted_for: str) -> tuple[int, ...]:
        """The ids of a text by the checkpoint's own tokenizer; ValueError if it has none."""
        if self._tokenizer is None:
            raise ValueError(
                f"checkpoint {self.path}: has no tokenizer.json, which is needed for {wanted_for}"
            )
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        file = Path(self.path) / "tokenizer.json"
        return Tokenizer.from_file(str(file)) if file.is_file() else None

    @abstractmethod
    def batch(self, media: Sequence[Tensor]) -> Any:
        """What `encode` needs for pictures uint8 [H, W, 3] of the sizes that `fit` gives."""

    @abstractmethod
    def encode(self, model: Any, batch: Any) -> Tensor:
        """Feature rows [N, *feature_shape]."""

    def read(self, model: Any, x_TC: Tensor, pack: Pack, places: Tensor) -> Tensor:
        """The language model's last hidden states [T, C]; `places` are the feature rows'."""
        del places
        out = model.get_submodule(self.text)(
            inputs_embeds=x_TC[None],
            position_ids=pack.positions[None],
            use_cache=False,
            **lengths_for(model, pack),
        )
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    def embedded(self, rows: Tensor) -> Tensor:
        """Of feature rows what stands in the place of embeddings: [N, C]."""
        return rows

    @abstractmethod
    def plain_inputs(self, sample: Sample) -> dict[str, Any]:
        """The arguments, beside input_ids, that the whole model takes for one sample."""

    def normalised(self, pictures: Tensor) -> Tensor:
        """uint8 [..., channels] to fp32, by the checkpoint's preprocessor_config.json."""
        half = [0.5] * 3
        centre = torch.tensor(self.preprocessing.get("image_mean", half))
        spread = torch.tensor(self.preprocessing.get("image_std", half))
        scale = self.preprocessing.get("rescale_factor", 1 / 255)
        normal: Tensor = (pictures.float() * scale - centre) / spread
        return normal


def lengths_for(model: Any, pack: Pack) -> dict[str, Any]:
    """The samples' lengths, for a model whose attention goes by them."""
    return {"segment_lengths": pack.lengths} if model.by_segments else {}


def check_picture(picture: Tensor, *, sides: str, fits: bool) -> None:
    """ValueError for what is no picture, or one that was not scaled as `fit` says."""
    if picture.ndim not in (3, 4) or picture.shape[-1] != 3 or picture.dtype != torch.uint8:
        raise ValueError(
            f"a picture has shape {tuple(picture.shape)} and {picture.dtype}; expected uint8 "
            "[height, width, 3], or [frames, height, width, 3] for a clip"
        )
    if not fits:
        raise ValueError(
            f"a picture has {picture.shape[-3]} x {picture.shape[-2]} pixels; expected {sides}: "
            "scale it to what fit(width, height) says"
        )
