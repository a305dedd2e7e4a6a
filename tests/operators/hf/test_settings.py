"""What is said per operator holds for the parts of a pretrained model: dtype, optimizer, rate,
freezing, adapters, checkpointing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes_pretrained import CONFIGS, make_checkpoint, pretrained_graph, transformers
from running import run_graph
from safetensors.torch import load_file

from flowengine.api import SGD, AdamW
from flowengine.operators.hf import LoRA, PretrainedLanguage, PretrainedVision
from flowengine.operators.hf.export import export
from flowengine.testing import verify

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A directory per family."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {kind: make_checkpoint(kind, root / kind) for kind in CONFIGS}


def weights_of(path: str) -> dict[str, torch.Tensor]:
    model = transformers.AutoModelForImageTextToText.from_pretrained(path)
    return dict(model.state_dict())


@pytest.mark.parametrize("kind", ["qwen2_5", "qwen3", "smolvlm"])
def test_parts_train_in_bfloat16(kind: str, checkpoints: dict[str, str], tmp_path: Path) -> None:
    """The loss is that of float32 but for rounding, the weights have float32 masters, and what is
    exported in bfloat16 is what the run computed with."""
    graph = pretrained_graph(checkpoints[kind], steps=3)
    wide = run_graph(graph, tmp_path / "wide")
    graph.dtype = "bfloat16"
    half = run_graph(graph, tmp_path / "half")
    assert half.losses == pytest.approx(wide.losses, rel=0.02)
    assert half.losses != wide.losses
    assert {row["dtype"] for row in half.rows("vision")} == {"bfloat16"}
    base, moved = weights_of(checkpoints[kind]), 0
    for stage in ("vision", "language"):
        for name, weight in half.weights[stage].items():
            assert weight.dtype == torch.float32, name
            moved += int((weight != base[name]).sum())
    assert moved > 0.5 * sum(weight.numel() for weight in base.values())
    to = export(tmp_path / "half", tmp_path / "out", dtype=torch.bfloat16)
    again = transformers.AutoModelForImageTextToText.from_pretrained(to)
    loaded = again.state_dict()
    for name, weight in {**half.weights["vision"], **half.weights["language"]}.items():
        assert torch.equal(loaded[name], weight.bfloat16()), name


@pytest.mark.parametrize("kind", ["qwen2_5", "qwen3"])
def test_rotary_frequencies_stay_exact_in_bfloat16(kind: str, checkpoints: dict[str, str]) -> None:
    """As in a model that transformers loads in bfloat16."""
    from flowengine.runtime.weights import cast

    whole = transformers.AutoModelForImageTextToText.from_pretrained(
        checkpoints[kind], dtype=torch.bfloat16
    )
    for operator in (PretrainedVision, PretrainedLanguage):
        module = operator(checkpoint=checkpoints[kind]).build()
        cast(module, "bfloat16")
        for name, tensor in [*module.named_buffers(), *module.named_parameters()]:
            theirs = dict(whole.named_buffers()) | dict(whole.named_parameters())
            assert tensor.dtype == theirs[name].dtype, name
            assert torch.equal(tensor, theirs[name]), name


def test_each_part_has_its_own_optimizer_and_rate(
    checkpoints: dict[str, str], tmp_path: Path
) -> None:
    """A step of SGD moves the encoder by rate times gradient; AdamW moves the rest by its rate."""
    path = checkpoints["qwen3"]
    graph = pretrained_graph(path, steps=1, dtype="float64")
    gradients = {}
    found = verify(graph, run_dir=tmp_path / "verify", runtime="inline")
    for stage in ("vision", "language"):
        gradients[stage] = load_file(tmp_path / "verify" / "weights" / f"{stage}.safetensors")
    assert found.agrees
    graph.stage("vision").optimizer = SGD(lr=0.5)
    graph.stage("language").optimizer = AdamW(lr=1e-3, weight_decay=0.0)
    ran = run_graph(graph, tmp_path / "run")
    assert ran.steps[0].lr == {"vision": 0.5, "language": 1e-3}
    base = weights_of(path)
    for name, gradient in gradients["vision"].items():
        moved = ran.weights["vision"][name] - base[name].double()
        torch.testing.assert_close(moved, -0.5 * gradient, rtol=1e-9, atol=1e-12, msg=name)
    head = ran.weights["language"]["lm_head.weight"] - base["lm_head.weight"].double()
    assert head.abs().max() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("stage", ["vision", "language"])
def test_checkpointing_changes_no_gradient(
    kind: str, stage: str, checkpoints: dict[str, str], tmp_path: Path
) -> None:
    """Layers whose activations are computed twice give the same gradients."""
    path = checkpoints[kind]
    operator = {"vision": PretrainedVision, "language": PretrainedLanguage}[stage]
    parts: dict[str, Any] = {stage: operator(checkpoint=path, checkpointing=True)}
    layers = [m for m in parts[stage].build().modules() if getattr(m, "gradient_checkpointing", 0)]
    assert layers
    graph = pretrained_graph(path, dtype="float64", **parts)
    assert verify(graph, run_dir=tmp_path, runtime="inline").agrees


def test_adapters_on_the_encoder_train_in_bfloat16(
    checkpoints: dict[str, str], tmp_path: Path
) -> None:
    """LoRA beside a frozen language model: adapters alone move, by their float32 masters; the rest
    stays in bfloat16, without a copy."""
    pytest.importorskip("peft", reason="needs flowengine[lora]")
    path = checkpoints["qwen2_5"]
    vision = PretrainedVision(checkpoint=path, lora=LoRA(rank=2, targets=("qkv",)))
    graph = pretrained_graph(path, vision=vision, dtype="bfloat16")
    graph.stage("language").freeze, graph.stage("language").optimizer = True, None
    ran = run_graph(graph, tmp_path)
    base = weights_of(path)
    for name, weight in ran.weights["vision"].items():
        if "lora_" in name:
            assert weight.dtype == torch.float32, name
        else:
            wanted = base[name.replace(".base_layer", "")].bfloat16()
            assert torch.equal(weight, wanted), name
    assert all(w.abs().max() > 0 for n, w in ran.weights["vision"].items() if "lora_B" in n)
    for name, weight in ran.weights["language"].items():
        assert torch.equal(weight, base[name].bfloat16()), name
