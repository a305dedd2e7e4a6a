"""The parts of pretrained models keep to the rules that every operator must keep to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes_pretrained import PictureSamples, make_checkpoint

from flowengine.operators.hf import PretrainedLanguage, PretrainedVision
from flowengine.testing import check_operator


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_5", "qwen3", "smolvlm"])
def test_both_parts_conform(kind: str, tmp_path: Path) -> None:
    """Features do not depend on their company, the loss does not depend on the packing."""
    checkpoint = make_checkpoint(kind, tmp_path)
    samples = [PictureSamples(checkpoint=checkpoint).read(index) for index in range(4)]
    vision = PretrainedVision(checkpoint=checkpoint)
    check_operator(vision, samples=samples)
    module = vision.build().to(torch.float64)
    features = {
        f"image/{index}": vision.forward(module, vision.batch(sample.items("image"))).detach()
        for index, sample in enumerate(samples)
        if sample.media
    }
    language = PretrainedLanguage(checkpoint=checkpoint)
    check_operator(language, samples=samples, features=features)
