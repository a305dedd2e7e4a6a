"""Modules are in training mode while they train, and in evaluation mode otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import small_graph
from running import run_graph
from torch import Tensor

from flowengine import Graph
from flowengine.api import Answer, Pack, Packer
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


def test_a_longer_sample_may_have_its_own_pack(tmp_path: Path) -> None:
    """With too_long="own-pack" a sample that exceeds the limit is trained, alone, as it would be in
    a larger pack."""
    loose = run_graph(small_graph(max_tokens=64), tmp_path / "loose")
    graph = small_graph(max_tokens=8)
    packer = next(stage.what for stage in graph.stages if isinstance(stage.what, Packer))
    packer.too_long = "own-pack"
    tight = run_graph(graph, tmp_path / "tight")
    assert [step.samples for step in tight.steps] == [8, 8, 8, 8]
    assert tight.losses == pytest.approx(loose.losses, rel=1e-4)
