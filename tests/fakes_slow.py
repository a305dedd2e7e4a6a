"""Operators that are slow by computing, never by sleeping."""

from __future__ import annotations

import torch
from torch import Tensor

from flowengine.api import Pack
from flowengine.operators.language import LanguageModel, LanguageTransformer


class SlowModel(LanguageModel):
    """A language model that multiplies matrices for some milliseconds per pack first."""

    rounds: int = 20

    def loss(self, module: LanguageTransformer, pack: Pack) -> Tensor:
        square = torch.eye(256)
        for _ in range(self.rounds):
            square = square @ square
        return super().loss(module, pack) * square[0, 0].detach()
