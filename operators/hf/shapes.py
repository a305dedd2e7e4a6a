"""The dimensions of a checkpoint's parts, from its configuration alone."""

from __future__ import annotations

from typing import Any

from flowengine.api import TransformerShape
from flowengine.operators.hf.checkpoint import read_config


def language_shape(checkpoint: str) -> TransformerShape:
    """The language model's and its head's."""
    text = read_config(checkpoint).text_config
    return TransformerShape(
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        head_width=getattr(text, "head_dim", None) or 0,
        hidden=text.intermediate_size,
        gated=True,
        causal=True,
        vocabulary=text.vocab_size,
    )


def vision_shape(checkpoint: str) -> TransformerShape:
    """The vision encoder's and its projector's. Layers that attend within windows count as if they
    attended to the whole picture."""
    config = read_config(checkpoint)
    vision, output = config.vision_config, config.text_config.hidden_size
    merge = _merge(config)
    frames = getattr(vision, "temporal_patch_size", 1)
    return TransformerShape(
        layers=getattr(vision, "depth", None) or vision.num_hidden_layers,
        width=vision.hidden_size,
        heads=getattr(vision, "num_heads", None) or vision.num_attention_heads,
        hidden=vision.intermediate_size,
        gated=vision.model_type.startswith("qwen2_5"),
        positions_per_row=merge,
        row_weights=_projector(config, merged=merge * vision.hidden_size, output=output),
        position_weights=3 * frames * vision.patch_size**2 * vision.hidden_size,
    )


def _merge(config: Any) -> int:
    """Patches that make one feature row."""
    default = getattr(config, "scale_factor", 1)
    return int(getattr(config.vision_config, "spatial_merge_size", default)) ** 2


def _projector(config: Any, *, merged: int, output: int) -> int:
    """Weights between the last block and the language model, per feature row."""
    if hasattr(config, "scale_factor"):
        return merged * output
    if not hasattr(config.vision_config, "spatial_merge_size"):
        return (merged + output) * output
    maps = 1 + len(getattr(config.vision_config, "deepstack_visual_indexes", ()))
    return maps * (merged + output) * merged
