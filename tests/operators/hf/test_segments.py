"""Attention by segments: what it computes, when it is used, and that it never leaks in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes_pretrained import CONFIGS, FIXED, IMAGE, make_checkpoint, text, transformers

from flowengine.operators.hf import PretrainedLanguage
from flowengine.operators.hf.segments import attend_segments
from flowengine.operators.layers import attend

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", CONFIGS)
def test_plain_causal_models_attend_by_segments(kind: str, tmp_path: Path) -> None:
    """All of the tiny models do; so the exactness tests are about this attention."""
    path = make_checkpoint(kind, tmp_path / kind)
    assert PretrainedLanguage(checkpoint=path).build().by_segments


def test_a_sliding_window_keeps_the_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with other layers than plain causal ones attends as transformers does it, exactly."""
    from fakes_pretrained import pretrained_graph

    from flowengine.testing import verify

    def sliding(**more: object) -> object:
        windows = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
        return transformers.LlavaConfig(
            text_config=transformers.Qwen2Config(**text(), **windows),
            vision_config=transformers.SiglipVisionConfig(**FIXED),
            image_token_index=IMAGE,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            **more,
        )

    monkeypatch.setitem(CONFIGS, "sliding", sliding)
    path = make_checkpoint("sliding", tmp_path / "base")
    assert not PretrainedLanguage(checkpoint=path).build().by_segments
    graph = pretrained_graph(path, dtype="float64")
    assert verify(graph, run_dir=tmp_path / "run", runtime="inline").agrees


def test_segments_attend_as_the_layers_here() -> None:
    """Grouped heads and several lengths: the same as the library's own attention."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(10, heads, 4, dtype=torch.float64, generator=draw) for heads in (6, 2, 2)
    )
    q_, k_, v_ = (x.transpose(0, 1)[None] for x in (q, k, v))
    found, _ = attend_segments(torch.nn.Identity(), q_, k_, v_, None, segment_lengths=(3, 1, 6))
    wanted = attend(q, k, v, (3, 1, 6), causal=True)
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=1e-14)


def test_attention_without_lengths_is_refused() -> None:
    """A model that does not pass the lengths on, or wants a window, is an error, not a leak."""
    x = torch.zeros(1, 2, 4, 4)
    with pytest.raises(ValueError, match="got lengths None"):
        attend_segments(torch.nn.Identity(), x, x, x, None)
    with pytest.raises(ValueError, match=r"and \['sliding_window'\]; expected lengths"):
        attend_segments(torch.nn.Identity(), x, x, x, None, segment_lengths=(4,), sliding_window=2)
