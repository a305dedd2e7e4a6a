"""Tiles and clips in conversations: as transformers' processors make them, and trained right."""

from __future__ import annotations

import importlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes_data import Image, picture, tokenizers
from fakes_pretrained import IMAGE, VIDEO, make_checkpoint, pretrained_graph

from flowengine.api import SampleError
from flowengine.operators.hf import PretrainedPictures, PretrainedVision
from flowengine.operators.sources import Conversations, InMemory
from flowengine.testing import verify

pytestmark = pytest.mark.slow

FAKE = "<fake_token_around_image>"
SPECIAL = ["<pad>", "<|im_start|>", "<|im_end|>", "<image>", "<video>", FAKE, "<global-img>"]
TILES = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]


def tokenizer() -> Any:
    """Bytes as words; double line ends are one token, as in the models' own; ids 3 and 4 are the
    placeholders of the tiny models."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    line = next(c for c in alphabet if ord(c) == 0x010A)
    special = [*SPECIAL, *TILES]
    words = {word: i for i, word in enumerate([*special, *alphabet, line + line])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[(line, line)]))
    made.add_special_tokens(special)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


def checkpoint(kind: str, path: Path, **preprocessing: Any) -> str:
    """A tiny model with a tokenizer and, where asked for, a preprocessor's settings."""
    made = make_checkpoint(kind, path)
    tokenizer().save(str(path / "tokenizer.json"))
    if preprocessing:
        (path / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return made


SPLIT = {
    "do_image_splitting": True,
    "size": {"longest_edge": 48},
    "max_image_size": {"longest_edge": 16},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "resample": 1,
}


def conversations(path: str, row: dict[str, Any], **settings: Any) -> Conversations:
    rows = [row, {"conversations": talk("Just text?")}, {**row, "id": "again"}]
    return Conversations(
        records=InMemory(rows),
        tokenizer=tokenizer(),
        pictures=PretrainedPictures(checkpoint=path),
        **settings,
    )


def talk(asked: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": asked}, {"from": "gpt", "value": "Yes."}]


@pytest.mark.parametrize("kind", ["idefics3", "smolvlm"])
@pytest.mark.parametrize("size", [(60, 40), (20, 50), (30, 30), (47, 9), (100, 5)])
def test_tiles_are_those_of_the_processor(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    """Tokens are what transformers makes of the picture, and so are pixels but for rounding."""
    path = checkpoint(kind, tmp_path / kind, **SPLIT)
    blob = picture(7, size=size)
    source = conversations(path, {"images": [blob], "conversations": talk("<image>What?")})
    sample, lengths = source.read(0), source.lengths(0)
    assert lengths.tokens == len(sample.tokens)
    name = "Idefics3ImageProcessorPil" if kind == "idefics3" else "SmolVLMImageProcessorPil"
    module: Any = importlib.import_module(f"transformers.models.{kind}.image_processing_pil_{kind}")
    made = getattr(module, name)(**SPLIT)(
        Image.open(io.BytesIO(blob)).convert("RGB"), return_row_col_info=True
    )
    pixels = torch.from_numpy(made["pixel_values"])
    (item,) = sample.items("image")
    batch = PretrainedVision(checkpoint=path).batch([item])
    torch.testing.assert_close(batch, pixels, rtol=0, atol=1e-6)
    rows, columns = made["rows"][0][0], made["cols"][0][0]
    processing: Any = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    prompt = processing.get_image_prompt_string(
        rows,
        columns,
        4,
        fake_token_around_image=FAKE,
        image_token="<image>",
        global_image_token="<global-img>",
    )
    wanted = tokenizer().encode(prompt, add_special_tokens=False).ids
    found = sample.tokens.tolist()
    first, last = found.index(5), len(found) - 1 - found[::-1].index(5)
    assert found[first : last + 1] == wanted
    assert sample.grids["image"].tolist() == [[len(pixels[0]), 2, 2]]


@pytest.mark.parametrize("kind", ["idefics3", "smolvlm"])
def test_tiles_train_as_the_whole_model(kind: str, tmp_path: Path) -> None:
    """Packed, with text among them, a picture in tiles has the whole model's gradients."""
    path = checkpoint(kind, tmp_path / kind, **SPLIT)
    pictures = [picture(1, size=(60, 40)), picture(2, size=(12, 12))]
    source = conversations(path, {"images": pictures, "conversations": talk("<image>A<image>?")})
    graph = pretrained_graph(path, dtype="float64", source=source, samples=3, max_tokens=1000)
    found = verify(graph, run_dir=tmp_path / "run", runtime="inline")
    assert found.agrees, (found.loss_difference, found.gradient_difference)


@pytest.mark.parametrize("number", [1, 4, 5])
@pytest.mark.parametrize("kind", ["qwen2_5", "qwen3"])
def test_clips_train_as_the_whole_model(kind: str, number: int, tmp_path: Path) -> None:
    """Frames between words and pictures, in the text's order; odd ones are padded as in
    transformers. Qwen3-VL has the times of pairs in words."""
    path = checkpoint(kind, tmp_path / kind)
    row = {
        "images": [picture(1, size=(24, 16))],
        "video": [picture(10 + i, size=(16, 24)) for i in range(number)],
        "conversations": talk("<video>before<image>?"),
    }
    source = conversations(path, row)
    sample = source.read(0)
    text = tokenizer().decode(sample.tokens.tolist(), skip_special_tokens=False)
    assert text.index("<video>") < text.index("before") < text.index("<image>")
    times = {1: ["0.0"], 4: ["0.2", "1.2"], 5: ["0.2", "1.2", "2.0"]}[number]
    for time in times:
        assert (f"<{time} seconds>" in text) == (kind == "qwen3")
    count = {1: 1, 4: 2, 5: 3}[number]
    grids = sample.grids["image"]
    assert int(grids[:, 0].sum()) == count + 1
    assert int((sample.tokens == VIDEO).sum()) == int(grids[:-1].prod(1).sum())
    assert int((sample.tokens == IMAGE).sum()) == int(grids[-1].prod())
    graph = pretrained_graph(path, dtype="float64", source=source, samples=3, max_tokens=1000)
    found = verify(graph, run_dir=tmp_path / "run", runtime="inline")
    assert found.agrees, (found.loss_difference, found.gradient_difference)


def test_what_is_no_clip_is_named(tmp_path: Path) -> None:
    """A film, frames of no picture, markers without clips, times without a tokenizer."""
    path = checkpoint("qwen3", tmp_path / "qwen3")
    for row, text in (
        ({"video": "film.mp4"}, "a clip is str; expected a list of its frames, two per second"),
        ({"video": []}, "expected a list of its frames"),
        ({"videos": [[b"x"]]}, "is in no known format of pictures"),
    ):
        with pytest.raises(SampleError, match=text):
            conversations(path, {**row, "conversations": talk("<video>?")}).read(0)
    (tmp_path / "qwen3" / "tokenizer.json").unlink()
    clip = {"video": [picture(1)], "conversations": talk("?")}
    from flowengine.operators.hf.families import family_of

    family_of.cache_clear()
    with pytest.raises(SampleError, match=r"no tokenizer\.json, which is needed for times of"):
        conversations(path, clip).read(0)
