"""The whole model in one process, sample by sample: what a graph of its parts is held against."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flowengine.api import IGNORED, Sample
from flowengine.operators.hf.families import family_of


class WholeModel:
    """A checkpoint as transformers loads it, on samples one by one, without packing or splitting.

    module: its parameters have the names that they have in the parts.
    """

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        from transformers import AutoModelForImageTextToText

        self._family = family_of(path)
        loaded: Any = AutoModelForImageTextToText.from_pretrained(path, local_files_only=True)
        self.module: torch.nn.Module = loaded.to(dtype)
        self.module.train()

    def loss(self, sample: Sample) -> Tensor:
        """The sum of the cross entropy over the sample's targets."""
        inputs = self._family.plain_inputs(sample)
        logits = self.module(input_ids=sample.tokens[None], **inputs).logits[0]
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(wide[:-1], sample.labels[1:], reduction="sum", ignore_index=IGNORED)
