"""The same small conversations with pictures in every form in which data sets come."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowengine.operators.sources import ArrowRecords, InMemory, JsonRecords, Records, TarRecords

Image: Any = pytest.importorskip("PIL.Image", reason="needs flowengine[hf]")
tokenizers: Any = pytest.importorskip("tokenizers", reason="needs flowengine[hf]")

NUMBER = 11
PLACEHOLDER = 3


def make_tokenizer() -> Any:
    """Bytes as words, and ChatML's marks; <|image|> is PLACEHOLDER."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<|im_start|>", "<|im_end|>", "<|image|>"]
    words = {word: i for i, word in enumerate([*special, *alphabet])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[]))
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def picture(number: int, *, size: tuple[int, int] | None = None) -> bytes:
    """A PNG of mixed size."""
    draw = np.random.default_rng(number)
    width, height = size or (int(draw.integers(10, 60)), int(draw.integers(10, 60)))
    pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def row(number: int) -> dict[str, Any]:
    """LLaVA's form; row i has i mod 3 pictures, named after it."""
    pictures = [f"{number:03}.{place}.png" for place in range(number % 3)]
    asked = "<image>" * len(pictures) + f"What is {number}?"
    turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": f"It is {number * 7}."}]
    if number % 4 == 0:
        turns += [{"from": "human", "value": "Sure?"}, {"from": "gpt", "value": "Yes."}]
    return {"id": f"r{number}", "image": pictures, "conversations": turns}


def rows() -> list[dict[str, Any]]:
    return [row(number) for number in range(NUMBER)]


def bytes_of(name: str) -> bytes:
    number, place, _ = name.split(".")
    return picture(10 * int(number) + int(place))


def with_bytes(each: Mapping[str, Any]) -> dict[str, Any]:
    """As the datasets library holds pictures."""
    pictures = [{"bytes": bytes_of(name), "path": name} for name in each["image"]]
    return {"id": each["id"], "images": pictures, "conversations": each["conversations"]}


def write_folder(path: Path) -> None:
    path.mkdir()
    for each in rows():
        for name in each["image"]:
            (path / name).write_bytes(bytes_of(name))


def json_list(path: Path) -> Records:
    write_folder(path / "images")
    (path / "data.json").write_text(json.dumps(rows()))
    return JsonRecords(path=str(path / "data.json"), images=str(path / "images"))


def json_lines(path: Path) -> Records:
    write_folder(path / "images")
    (path / "data.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows()))
    return JsonRecords(path=str(path / "data.jsonl"), images=str(path / "images"))


def table() -> pa.Table:
    return pa.Table.from_pylist([with_bytes(each) for each in rows()])


def parquet(path: Path) -> Records:
    pq.write_table(table().slice(0, 6), path / "train-00000.parquet", row_group_size=4)
    pq.write_table(table().slice(6), path / "train-00001.parquet", row_group_size=4)
    return ArrowRecords(pattern=str(path / "train-*.parquet"))


def arrow(path: Path) -> Records:
    with pa.ipc.new_stream(path / "data-00000.arrow", table().schema) as writer:
        writer.write_table(table(), max_chunksize=3)
    return ArrowRecords(pattern=str(path / "data-*.arrow"))


def write_shard(path: Path, numbers: range) -> None:
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            each = row(number)
            files = {name: bytes_of(name) for name in each["image"]}
            files[f"{number:03}.json"] = json.dumps(each).encode()
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def tar(path: Path) -> Records:
    write_shard(path / "shard-0.tar", range(5))
    write_shard(path / "shard-1.tar", range(5, NUMBER))
    return TarRecords(pattern=str(path / "shard-*.tar"))


def in_memory(path: Path) -> Records:
    del path
    return InMemory([with_bytes(each) for each in rows()])


FORMS: Mapping[str, Callable[[Path], Records]] = {
    "json": json_list,
    "jsonl": json_lines,
    "parquet": parquet,
    "arrow": arrow,
    "tar": tar,
    "memory": in_memory,
}
