"""Modules are in training mode while they train, and in evaluation mode otherwise."""

from __future__ import annotations

from pathlib import Path

from fakes import small_graph
from running import run_graph
from torch import Tensor

from flowengine import Graph
from flowengine.api import Answer, Pack
from flowengine.operators.language import LanguageModel
from flowengine.operators.language.transformer import LanguageTransformer
from flowengine.operators.vision import VisionEncoder
from flowengine.operators.vision.transformer import Patches, VisionTransformer

seen: list[tuple[str, bool]] = []


class WatchedEncoder(VisionEncoder):
    """Notes its module's mode."""

    def forward(self, module: VisionTransformer, batch: Patches) -> Tensor:
        seen.append(("encoder", module.training))
        return super().forward(module, batch)


class WatchedModel(LanguageModel):
    """Notes its module's mode."""

    def loss(self, module: LanguageTransformer, pack: Pack) -> Tensor:
        seen.append(("loss", module.training))
        return super().loss(module, pack)

    def answers(self, module: LanguageTransformer, pack: Pack) -> list[Answer]:
        seen.append(("answers", module.training))
        return super().answers(module, pack)


def watched(graph: Graph) -> Graph:
    encoder, model = graph.stage("encoder"), graph.stage("model")
    encoder.what = WatchedEncoder(width=16, depth=1, heads=2, output=12)
    model.what = WatchedModel(vocabulary=23, width=12, depth=1, heads=2, groups=1)
    return graph


def test_modes(tmp_path: Path) -> None:
    """Losses and trained features come from training mode; answers, held-out and frozen features
    from evaluation mode."""
    seen.clear()
    run_graph(watched(small_graph(steps=1, evaluate=4)), tmp_path / "trained")
    assert ("loss", True) in seen
    assert ("answers", False) in seen
    assert {mode for who, mode in seen if who == "encoder"} == {True, False}
    seen.clear()
    run_graph(watched(small_graph(steps=1, freeze=True)), tmp_path / "frozen")
    assert {mode for who, mode in seen if who == "encoder"} == {False}
