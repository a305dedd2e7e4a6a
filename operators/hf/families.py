"""The families of models that the operators know, by the configuration's model_type."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from flowengine.operators.hf.checkpoint import read_config
from flowengine.operators.hf.family import Family
from flowengine.operators.hf.idefics import Idefics
from flowengine.operators.hf.llava import Llava
from flowengine.operators.hf.qwen import Qwen
from flowengine.operators.sources.fit import Fit

FAMILIES: dict[str, type[Family]] = {
    "qwen2_5_vl": Qwen,
    "qwen3_vl": Qwen,
    "llava": Llava,
    "idefics3": Idefics,
    "smolvlm": Idefics,
}


@cache
def family_of(path: str) -> Family:
    """The family of a checkpoint directory; ValueError for a model that no family knows."""
    kind = read_config(path).model_type
    if kind not in FAMILIES:
        raise ValueError(
            f"checkpoint {path}: its model_type is '{kind}'; expected one of {sorted(FAMILIES)}"
        )
    return FAMILIES[kind](path)


@dataclass(frozen=True, kw_only=True)
class PretrainedPictures:
    """A checkpoint's rule for pictures and clips, for sources."""

    checkpoint: str

    @property
    def placeholders(self) -> tuple[int, ...]:
        """The ids at whose places feature rows stand."""
        return family_of(self.checkpoint).placeholders

    def fit(self, width: int, height: int) -> Fit:
        """How a picture of this size in pixels enters the model."""
        return family_of(self.checkpoint).fit(width, height)

    def fit_clip(self, width: int, height: int, frames: int) -> tuple[Fit, ...]:
        """How a clip of so many frames, two per second, does."""
        return family_of(self.checkpoint).fit_clip(width, height, frames)
