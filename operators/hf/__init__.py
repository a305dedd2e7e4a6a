"""Pretrained models of the Hugging Face hub, by parts: `pip install 'flowengine[hf]'`."""

from flowengine.operators.hf.audio import PretrainedAudio
from flowengine.operators.hf.families import PretrainedPictures, family_of
from flowengine.operators.hf.family import Family
from flowengine.operators.hf.language import PretrainedLanguage
from flowengine.operators.hf.tuning import LoRA
from flowengine.operators.hf.vision import PretrainedVision

__all__ = [
    "Family",
    "LoRA",
    "PretrainedAudio",
    "PretrainedLanguage",
    "PretrainedPictures",
    "PretrainedVision",
    "family_of",
]
