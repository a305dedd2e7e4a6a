"""What of a loaded part trains: all of it, some of it, or adapters beside it (LoRA, arXiv
2106.09685, by the peft package)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowengine.operators.hf.checkpoint import Checkpoint
from flowengine.operators.hf.skeleton import Part, load_part


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Low-rank adapters on the linear layers of these names.

    rank: r of an adapter B A, with A [r, inputs] and B [outputs, r]. alpha: an adapter adds
    alpha / rank * B A x. targets: the last parts of the layers' names; "all-linear" means all.
    """

    rank: int = 8
    alpha: int = 16
    targets: str | Sequence[str] = "all-linear"


def load_tuned(
    path: str, part: Part, *, frozen: Sequence[str], lora: LoRA | None, checkpointing: bool
) -> Any:
    """The part as `load_part` gives it, with adapters if wanted; the rest frozen as asked.

    Raises ValueError for a prefix in `frozen` that no parameter has.
    """
    from transformers import AutoModelForImageTextToText

    model, names = load_part(path, part, model_class=AutoModelForImageTextToText)
    for prefix in frozen:
        mine = [p for name, p in model.named_parameters() if name.startswith(prefix)]
        if not mine:
            raise ValueError(
                f"frozen={prefix!r} is no parameter's beginning; there are "
                f"{sorted({'.'.join(name.split('.')[:3]) for name in names})}"
            )
        for parameter in mine:
            parameter.requires_grad_(False)
    if lora is not None:
        _adapt(model, lora)
    if checkpointing:
        layers = model.get_submodule(part.own[0])
        layers.activation_checkpointing_enable({"use_reentrant": False})
    model.originals = names
    return model


def _adapt(model: Any, lora: LoRA) -> None:
    """Puts adapters beside the linear layers, and freezes everything else."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ValueError("lora= needs the package peft; pip install 'flowengine[lora]'") from None
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0)
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


def origin_of(path: str, model: Any) -> dict[str, str]:
    """The header of the part's weights file, which `flowengine export` reads.

    checkpoint: the directory. names: JSON, the checkpoint's name of each tensor of the file.
    merges: JSON, for each tensor with an adapter {"weight", "a", "b", "scale"}, names in the file.
    """
    merges, names = [], dict(model.originals)
    for layer, module in model.named_modules():
        if hasattr(module, "base_layer") and "default" in getattr(module, "lora_A", {}):
            for leaf in ("weight", "bias"):
                original = names.pop(f"{layer}.{leaf}", None)
                if original is not None:
                    names[f"{layer}.base_layer.{leaf}"] = original
            merges.append(
                {
                    "weight": f"{layer}.base_layer.weight",
                    "a": f"{layer}.lora_A.default.weight",
                    "b": f"{layer}.lora_B.default.weight",
                    "scale": float(module.scaling["default"]),
                }
            )
    return {
        "checkpoint": str(Path(Checkpoint(path).path).resolve()),
        "names": json.dumps(names),
        "merges": json.dumps(merges),
    }
