"""Shapes of checkpoints: as many weights as the parts have, without building them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes_pretrained import CONFIGS, make_checkpoint

from flowengine.operators.hf import PretrainedLanguage, PretrainedVision

OUTSIDE = ("position", "pos_embed", "class_embedding", "head.probe", "head.attention", "head.mlp")
"""Tables that are looked up, and parts that no feature passes through."""


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_shapes_count_the_weights_of_a_checkpoint(kind: str, tmp_path: Path) -> None:
    """All matrices of the encoder with its projector, and of the language model with its head."""
    checkpoint = make_checkpoint(kind, tmp_path)
    for part in (
        PretrainedVision(checkpoint=checkpoint),
        PretrainedLanguage(checkpoint=checkpoint),
    ):
        built = sum(
            weight.numel()
            for name, weight in part.build().named_parameters()
            if weight.ndim > 1 and not any(word in name for word in OUTSIDE)
        )
        assert part.shape().num_weights == built
