"""Data sets in files: JSON with a folder of pictures, Parquet and Arrow, tar shards."""

from __future__ import annotations

import json
import tarfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from flowengine.api import SampleError
from flowengine.operators.sources.records import Blob, Record, Records, parse

CutOff = Literal["refuse", "keep"]
_Member = tuple[str, str, tuple[tuple[str, Blob], ...]]

PICTURES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm")
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The last bytes of an Arrow stream (Arrow columnar format, IPC streaming format)."""


@dataclass(frozen=True, kw_only=True)
class JsonRecords(Records):
    """LLaVA's form: a JSON list, or JSON lines, and a folder that picture paths start in."""

    path: str
    images: str = "."

    def __len__(self) -> int:
        return len(_lines(self.path))

    def __getitem__(self, index: int) -> Record:
        where = f"{Path(self.path).name} record {index}"
        row = _lines(self.path)[index]
        if isinstance(row, str):
            try:
                row = json.loads(row)
            except json.JSONDecodeError as error:
                raise SampleError(f"{where}: no JSON: {error}") from None
        if not isinstance(row, dict):
            raise SampleError(f"{where}: is {type(row).__name__}; expected an object")
        return parse(row, where=where, folder=Path(self.images))


@dataclass(frozen=True, kw_only=True)
class ArrowRecords(Records):
    """Parquet or Arrow files as the `datasets` library writes them, in the order of their names.

    pattern: a path, or one with * in its last part. Parquet is read a row group at a time and the
    last four are kept: shuffled reading is quick where row groups are small, and in Arrow files.
    """

    pattern: str

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Record:
        number = bisect_right(self._starts, index) - 1
        path, row = self._paths[number], index - self._starts[number]
        return parse(_arrow_row(path, row), where=f"{Path(path).name} row {row}")

    @property
    def _paths(self) -> tuple[str, ...]:
        return _matching(self.pattern)

    @property
    def _starts(self) -> tuple[int, ...]:
        return _starts(self._paths)


@dataclass(frozen=True, kw_only=True)
class TarRecords(Records):
    """WebDataset shards: files of one name but for what follows its first dot are one record.

    Pictures by their endings; .json has the record's row; .txt, where there is no .json, a caption.
    Shards are indexed by their headers when first used, then read at any place. pattern: a path,
    or one with * in its last part.
    cut_off: of a shard that ends too early, "refuse" all of it; or "keep" what is whole, with a
    record in the place of what is lost that cannot be read: SampleError, for the graph to decide.
    """

    pattern: str
    cut_off: CutOff = "refuse"

    def __len__(self) -> int:
        return len(_members(self.pattern, self.cut_off))

    def __getitem__(self, index: int) -> Record:
        path, key, blobs = _members(self.pattern, self.cut_off)[index]
        where = f"{Path(path).name} '{key}'"
        if not blobs:
            raise SampleError(f"{Path(path).name}: {key}")
        row: dict[str, Any] = {}
        for ending, blob in blobs:
            if ending == "json":
                try:
                    row |= json.loads(blob.read())
                except (ValueError, OSError) as error:
                    raise SampleError(f"{where}: its .json cannot be read: {error}") from None
            elif ending == "txt":
                row.setdefault("caption", blob.read().decode(errors="replace"))
        pictures = [blob for ending, blob in blobs if ending.rpartition(".")[2] in PICTURES]
        row = {key: value for key, value in row.items() if key not in ("image", "images")}
        return parse({"images": pictures, **row}, where=where)


@lru_cache(maxsize=8)
def _lines(path: str) -> Sequence[Any]:
    """The rows of a JSON list, or the lines of a file of JSON lines."""
    text = Path(path).read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        rows: list[Any] = json.loads(text)
        return rows
    return [line for line in text.splitlines() if line.strip()]


@lru_cache(maxsize=64)
def _matching(pattern: str) -> tuple[str, ...]:
    path = Path(pattern)
    found = sorted(path.parent.glob(path.name))
    if not found:
        raise FileNotFoundError(f"{pattern}: no such file")
    return tuple(str(each) for each in found)


@lru_cache(maxsize=8)
def _starts(paths: tuple[str, ...]) -> tuple[int, ...]:
    """The number of the first row of every file, and of all rows."""
    counts = [
        pq.ParquetFile(path).metadata.num_rows if _is_parquet(path) else len(_mapped(path))
        for path in paths
    ]
    return (0, *accumulate(counts))


def _is_parquet(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(4) == b"PAR1"


def _arrow_row(path: str, row: int) -> dict[str, Any]:
    if not _is_parquet(path):
        found: dict[str, Any] = _mapped(path).slice(row, 1).to_pylist()[0]
        return found
    starts = _group_starts(path)
    group = bisect_right(starts, row) - 1
    found = _group(path, group).slice(row - starts[group], 1).to_pylist()[0]
    return found


@lru_cache(maxsize=64)
def _group_starts(path: str) -> tuple[int, ...]:
    metadata = pq.ParquetFile(path).metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    return (0, *accumulate(sizes))


@lru_cache(maxsize=4)
def _group(path: str, group: int) -> pa.Table:
    return pq.ParquetFile(path).read_row_group(group)


@lru_cache(maxsize=64)
def _mapped(path: str) -> pa.Table:
    """An Arrow file or stream, mapped. A stream that was cut off between two batches would read
    as a shorter one; so its end is looked for."""
    mapped = pa.memory_map(path)
    if mapped.read(6) == b"ARROW1":
        return pa.ipc.open_file(mapped).read_all()
    mapped.seek(max(0, mapped.size() - len(STREAM_END)))
    if mapped.read() != STREAM_END:
        raise ValueError(f"{path}: is no whole Arrow stream, its end is missing; write it again")
    mapped.seek(0)
    return pa.ipc.open_stream(mapped).read_all()


@lru_cache(maxsize=8)
def _members(pattern: str, cut_off: CutOff) -> Sequence[_Member]:
    """The records of all shards: shard, key, and its files by ending; what is lost has no files,
    and what is known of it for a key."""
    return [record for path in _matching(pattern) for record in _whole_and_lost(path, cut_off)]


def _whole_and_lost(path: str, cut_off: CutOff) -> Iterator[_Member]:
    found = list[_Member]()
    try:
        for record in _shard(Path(path)):
            found.append(record)
    except ValueError as error:
        if cut_off == "refuse":
            raise
        yield from found
        yield path, f"the records from here on are lost: {error}", ()
    else:
        yield from found


def _shard(path: Path) -> Iterator[_Member]:
    """The records of a shard. Of one that is cut off, the last that is yielded is whole: the files
    of a record follow each other, and it ends where the next begins."""
    key, files = "", list[tuple[str, Blob]]()
    for member in _headers(path):
        folder, _, name = member.name.rpartition("/")
        stem, _, ending = name.partition(".")
        this = f"{folder}/{stem}" if folder else stem
        if files and this != key:
            yield str(path), key, tuple(files)
            files = []
        blob = Blob(member.name, path=path, offset=member.offset_data, size=member.size)
        key = this
        files.append((ending.lower(), blob))
    if files:
        yield str(path), key, tuple(files)


def _headers(path: Path) -> Iterator[tarfile.TarInfo]:
    """The shard's files. A shard that was cut off is refused: where the cut lies between two
    members, the rest of them would vanish without a word."""
    size, end = path.stat().st_size, 0
    try:
        with tarfile.open(path, mode="r:") as tar:
            for member in tar:
                end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                if end > size:
                    raise ValueError(
                        f"{path}: is cut off in '{member.name}': it has {size} bytes, that file "
                        f"goes on to {end}; fetch the shard again"
                    )
                if member.isfile():
                    yield member
    except tarfile.TarError as error:
        raise ValueError(f"{path}: is no whole tar file after byte {end}: {error}") from None
    with path.open("rb") as file:
        file.seek(end)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise ValueError(
                f"{path}: is cut off: no end-of-archive block after byte {end}; fetch it again"
            )
