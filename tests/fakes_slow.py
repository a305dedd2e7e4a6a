"""Operators that are slow by computing, never by sleeping."""

from __future__ import annotations

import torch
from torch import Tensor

from flowengine.api import Pack
from flowengine.operators.language import LanguageModel, LanguageTransformer
from flowengine.runtime.inline import InlineRun
from flowengine.runtime.objective_stage import ObjectiveStage
from flowengine.runtime.stage import Stage


class SlowModel(LanguageModel):
    """A language model that multiplies matrices for some milliseconds per pack first."""

    rounds: int = 20

    def loss(self, module: LanguageTransformer, pack: Pack) -> Tensor:
        square = torch.eye(256)
        for _ in range(self.rounds):
            square = square @ square
        return super().loss(module, pack) * square[0, 0].detach()


class SlowInline(InlineRun):
    """An inline run whose objective takes the time in which the others could do 20 things."""

    turns = 0

    def _advance(self, stage: Stage) -> bool:
        if isinstance(stage, ObjectiveStage):
            self.turns += 1
            if self.turns % 20:
                return True
        return super()._advance(stage)
