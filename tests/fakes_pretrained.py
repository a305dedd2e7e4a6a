"""Tiny random vision-language models as checkpoints, samples for them, graphs of their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from flowengine import Graph, Step
from flowengine.api import AdamW, GradientReturn, Lengths, Sample, Source
from flowengine.operators.hf import PretrainedLanguage, PretrainedVision, family_of
from flowengine.operators.packing import CostPacker

transformers: Any = pytest.importorskip("transformers", reason="needs flowengine[hf]")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCABULARY = 304
IMAGE, VIDEO, START, END = 3, 4, 5, 6
SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4}
VISION = {"hidden_size": 16, "intermediate_size": 24, "patch_size": 4}
FIXED = {**VISION, "num_attention_heads": 2, "num_hidden_layers": 2, "image_size": 16}
IDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}


def text(**more: Any) -> dict[str, Any]:
    plain = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "pad_token_id": 0}
    return {
        **SIZES,
        **plain,
        "num_key_value_heads": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


def rope(**more: Any) -> dict[str, Any]:
    parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2], **more}
    return {"rope_parameters": parameters}


def qwen2_5(**more: Any) -> Any:
    vision = {**VISION, "depth": 2, "num_heads": 2, "window_size": 16, "out_hidden_size": 32}
    return transformers.Qwen2_5_VLConfig(
        text_config=text(**rope()),
        vision_config={**vision, "fullatt_block_indexes": [1]},
        **IDS,
        **more,
    )


def qwen3(**more: Any) -> Any:
    vision = {**VISION, "depth": 3, "num_heads": 2, "out_hidden_size": 32}
    return transformers.Qwen3VLConfig(
        text_config=text(num_hidden_layers=3, head_dim=8, **rope(mrope_interleaved=True)),
        vision_config={**vision, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
        **IDS,
        **more,
    )


def llava(**more: Any) -> Any:
    return transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**text()),
        vision_config=transformers.CLIPVisionConfig(**FIXED),
        image_token_index=IMAGE,
        vision_feature_layer=-2,
        **more,
    )


def llava_siglip(**more: Any) -> Any:
    return transformers.LlavaConfig(
        text_config=transformers.Qwen2Config(**text()),
        vision_config=transformers.SiglipVisionConfig(**FIXED),
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        **more,
    )


def smolvlm(**more: Any) -> Any:
    return transformers.SmolVLMConfig(
        text_config=transformers.LlamaConfig(**text()),
        vision_config=FIXED,
        image_token_id=IMAGE,
        scale_factor=2,
        pad_token_id=0,
        **more,
    )


def idefics3(**more: Any) -> Any:
    return transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**text()),
        vision_config=FIXED,
        image_token_id=IMAGE,
        scale_factor=2,
        pad_token_id=0,
        **more,
    )


CONFIGS: Mapping[str, Callable[..., Any]] = {
    "qwen2_5": qwen2_5,
    "qwen3": qwen3,
    "llava": llava,
    "llava_siglip": llava_siglip,
    "smolvlm": smolvlm,
    "idefics3": idefics3,
}


def make_checkpoint(kind: str, path: Path, *, shard: str = "1GB", **more: Any) -> str:
    """A tiny random model of this kind, saved as transformers saves it; its directory."""
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(CONFIGS[kind](**more))
    model.save_pretrained(path, max_shard_size=shard)
    return str(path)


class PictureSamples(Source[Sample]):
    """Sample i has i mod 4 pictures of mixed sizes between a few words; where `clips` is set, the
    first picture of every fifth sample is a clip of four frames (two for Qwen3-VL, where a clip is
    one item for each pair of frames)."""

    checkpoint: str
    clips: bool = False
    seed: int = 0

    def lengths(self, index: int) -> Lengths:
        sample = self.read(index)
        rows = sum(int(grid.prod()) for grids in sample.grids.values() for grid in grids)
        targets = int((sample.labels != -100).sum())
        return Lengths(tokens=len(sample.tokens), targets=targets, media={"image": rows})

    def read(self, index: int) -> Sample:
        draw = torch.Generator().manual_seed(1000 * self.seed + index)

        def pick(low: int, high: int) -> int:
            return int(torch.randint(low, high, (), generator=draw))

        family = family_of(self.checkpoint)
        tokens, pictures, grids = [1, pick(7, VOCABULARY)], [], []
        for number in range(index % 4):
            fit = family.fit(pick(8, 40), pick(8, 40))
            shape: tuple[int, ...] = (fit.size[1], fit.size[0], 3)
            grid, ids = fit.grid, list(fit.tokens)
            if self.clips and index % 5 == 2 and number == 0:
                pairs = 2 if family.config.model_type == "qwen2_5_vl" else 1
                shape, grid = (2 * pairs, *shape), (pairs, *grid[1:])
                ids = [START, *[VIDEO] * (pairs * (len(ids) - 2)), END]
            pictures.append(torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw))
            grids.append(grid)
            tokens += [*ids, *(pick(7, VOCABULARY) for _ in range(pick(1, 4)))]
        words = [pick(7, VOCABULARY) for _ in range(pick(2, 6))]
        labels = [-100] * len(tokens) + [word if pick(0, 3) else -100 for word in words[:-1]]
        tokens += words
        return Sample(
            tokens=torch.tensor(tokens),
            labels=torch.tensor([*labels, words[-1]]),
            media={"image": tuple(pictures)} if pictures else {},
            grids={"image": torch.tensor(grids)} if pictures else {},
        )


def pretrained_graph(
    checkpoint: str,
    *,
    steps: int = 2,
    samples: int = 6,
    max_tokens: int = 400,
    dtype: Any = "float32",
    clips: bool = False,
    replicas: int = 1,
    freeze: bool = False,
    activations: Any = "stash",
    vision: PretrainedVision | None = None,
    language: PretrainedLanguage | None = None,
    source: Source[Sample] | None = None,
) -> Graph:
    """Both parts of the checkpoint, trained together, each in a process of its own."""
    adam = AdamW(lr=1e-3)
    graph = Graph("pretrained", step=Step(samples=samples), steps=steps, dtype=dtype)
    what = source or PictureSamples(checkpoint=checkpoint, clips=clips)
    read = graph.add(what, name="source")
    features = graph.add(
        vision or PretrainedVision(checkpoint=checkpoint),
        read,
        name="vision",
        optimizer=None if freeze else adam,
        freeze=freeze,
        replicas=replicas,
        activations=activations,
    )
    pooled = graph.pool(read, features, capacity="64 MiB")
    packs = graph.add(CostPacker(max_tokens=max_tokens, min_packs=2), pooled, name="packer")
    operator = language or PretrainedLanguage(checkpoint=checkpoint)
    model = graph.add(operator, packs, name="language", optimizer=adam)
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    return graph
