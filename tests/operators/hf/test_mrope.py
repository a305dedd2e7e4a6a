"""Positions of packed samples, held against those of transformers, sample by sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes_pretrained import CONFIGS, IMAGE, VIDEO, make_checkpoint, transformers
from torch import Tensor

from flowengine.operators.hf import family_of, mrope


def sequence(*parts: int | tuple[int, tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
    """Tokens and grids of a sample: numbers are words, pairs are items (placeholder, grid)."""
    tokens: list[int] = []
    grids = []
    for part in parts:
        if isinstance(part, int):
            tokens += range(10, 10 + part)
        else:
            token, (t, h, w) = part
            tokens += [token] * (t * h * w)
            grids.append((t, h, w))
    return torch.tensor(tokens), torch.tensor(grids, dtype=torch.long).reshape(-1, 3)


STILLS = [
    sequence(5),
    sequence(1),
    sequence(2, (IMAGE, (1, 3, 2)), 4),
    sequence(1, (IMAGE, (1, 1, 1)), 1, (IMAGE, (1, 2, 7)), 3),
    sequence(2, (VIDEO, (1, 2, 2)), 2, (IMAGE, (1, 4, 1)), 1),
]
CLIPS = [
    sequence(3, (VIDEO, (3, 2, 5)), 2),
    sequence(1, (VIDEO, (2, 1, 1)), 1, (IMAGE, (1, 2, 2)), 1),
]


@pytest.mark.parametrize("kind", ["qwen2_5", "qwen3"])
def test_positions_are_those_of_transformers(kind: str) -> None:
    """Stills at image and video placeholders, and for Qwen2.5-VL clips, packed together."""
    config = CONFIGS[kind]()
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config).model
    samples = STILLS + (CLIPS if kind == "qwen2_5" else [])
    interval = getattr(config.vision_config, "tokens_per_second", 1)
    found = mrope.place(
        torch.cat([tokens for tokens, _ in samples]),
        [len(tokens) for tokens, _ in samples],
        torch.cat([grids for _, grids in samples]),
        intervals={IMAGE: 1.0, VIDEO: float(interval)},
    )
    wanted = torch.cat([theirs(model, *sample) for sample in samples], dim=1)
    assert torch.equal(found, wanted)


def theirs(model: Any, tokens: Tensor, grids: Tensor) -> Tensor:
    kinds = (tokens == IMAGE).int() + 2 * (tokens == VIDEO).int()
    patches = grids * torch.tensor([1, 2, 2])
    starts = grids.prod(1).cumsum(0) - grids.prod(1)
    at = kinds[kinds > 0][starts]
    positions: Tensor = model.get_rope_index(
        tokens[None],
        mm_token_type_ids=kinds[None],
        image_grid_thw=patches[at == 1] if (at == 1).any() else None,
        video_grid_thw=patches[at == 2] if (at == 2).any() else None,
    )[0]
    return positions[:, 0]


def test_placeholders_and_grids_must_fit() -> None:
    """Too few grids, too many, and one that is larger than its run of placeholders are refused."""
    tokens, grids = sequence(2, (IMAGE, (1, 2, 2)), 1)
    intervals = {IMAGE: 1.0}
    with pytest.raises(ValueError, match=r"more placeholders 3 than grids; give Sample\.grids"):
        mrope.place(tokens, [len(tokens)], grids[:0], intervals=intervals)
    with pytest.raises(ValueError, match=r"1 grid\(s\) have no placeholders"):
        mrope.place(tokens, [len(tokens)], grids.repeat(2, 1), intervals=intervals)
    with pytest.raises(ValueError, match="grid of 1 x 4 x 2 feature rows has fewer than 8"):
        mrope.place(tokens, [len(tokens)], grids * torch.tensor([1, 2, 1]), intervals=intervals)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(33, 70), (8, 8), (5, 900), (2000, 1500), (64, 64)])
def test_pictures_enter_as_through_the_processor(
    size: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a picture of any size, the size, the grid and the patches are Qwen's own processor's."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    path = make_checkpoint("qwen2_5", tmp_path_factory.mktemp("processor"))
    processor = Qwen2VLImageProcessorPil(
        patch_size=4, size={"shortest_edge": 1024, "longest_edge": 4096}
    )
    processor.save_pretrained(path)
    family_of.cache_clear()
    family = family_of(path)
    width, height = size
    fit = family.fit(width, height)
    draw = torch.Generator().manual_seed(0)
    picture = torch.randint(
        0, 256, (fit.size[1], fit.size[0], 3), dtype=torch.uint8, generator=draw
    )
    large = torch.zeros(height, width, 3, dtype=torch.uint8)
    theirs = processor(images=large.numpy(), return_tensors="pt")
    assert theirs["image_grid_thw"][0].tolist() == [1, fit.grid[1] * 2, fit.grid[2] * 2]
    same = processor(images=picture.numpy(), do_resize=False, return_tensors="pt")
    torch.testing.assert_close(family.batch([picture]).pixels, same["pixel_values"])
