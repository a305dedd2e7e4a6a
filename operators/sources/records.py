"""Conversations with pictures as data sets hold them, before anything is decoded or tokenised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flowengine.api import SampleError

Role = Literal["system", "user", "assistant"]
ROLES: Mapping[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
}
MARKER = "<image>"
"""Where a picture stands in a text."""


@dataclass(frozen=True)
class Blob:
    """Encoded bytes: `data`, or `size` bytes of a file from `offset` on (size None: to its end)."""

    name: str
    data: bytes | None = None
    path: Path | None = None
    offset: int = 0
    size: int | None = None

    def read(self) -> bytes:
        """All of it; OSError where the file is not there or shorter."""
        if self.data is not None:
            return self.data
        assert self.path is not None
        with self.path.open("rb") as file:
            file.seek(self.offset)
            found = file.read() if self.size is None else file.read(self.size)
        if self.size is not None and len(found) < self.size:
            raise OSError(f"{self.path} ends after {len(found)} of {self.size} bytes")
        return found


@dataclass(frozen=True)
class Turn:
    """What one side says. `text` has a MARKER for each picture."""

    role: Role
    text: str


@dataclass(frozen=True)
class Record:
    """One conversation. where: its name in messages: file, number, and id if it has one."""

    where: str
    turns: tuple[Turn, ...]
    pictures: tuple[Blob, ...] = ()
    note: Mapping[str, str | int | float] = field(default_factory=dict)


class Records(ABC):
    """A data set with records in a fixed order; a cheap value that opens its files when used."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Record:
        """Record `index`; SampleError, naming it, where it cannot be read."""


@dataclass(frozen=True)
class InMemory(Records):
    """Records that are there already, in the form that `parse` knows; pictures are paths, bytes, or
    {"bytes": ..., "path": ...}."""

    rows: Sequence[Mapping[str, Any]] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Record:
        return parse(self.rows[index], where=f"row {index}")


def parse(row: Mapping[str, Any], *, where: str, folder: Path | None = None) -> Record:
    """The record that a row in one of the field's usual forms stands for.

    conversations: [{"from": "human" | "gpt", "value": text}]     LLaVA, ShareGPT
    messages: [{"role", "content": text or list of parts}]        OpenAI, TRL
    texts: [{"user", "assistant"}]                                the Cauldron
    caption or text                                               captions
    image, images: a picture or several                           with any of them

    folder: where relative picture paths start. Pictures without markers come first in the
    first user's turn. Raises SampleError for anything else.
    """
    name = f"{where} (id {row['id']!r})" if row.get("id") not in (None, "") else where
    pictures = [*_listed(row.get("image")), *_listed(row.get("images"))]
    try:
        turns, inner = _turns(row)
        blobs = tuple(_blob(picture, folder) for picture in [*inner, *pictures])
    except (KeyError, TypeError, ValueError) as error:
        text = f"it has no '{error.args[0]}'" if isinstance(error, KeyError) else str(error)
        raise SampleError(f"{name}: {text}; its keys are {sorted(row)}") from None
    found = sum(turn.text.count(MARKER) for turn in turns)
    if blobs and not found:
        turns, found = _with_markers(turns, len(blobs)), len(blobs)
    if found != len(blobs):
        raise SampleError(
            f"{name}: {found} '{MARKER}' in its text but {len(blobs)} pictures; expected as many"
        )
    note = {"id": row["id"]} if isinstance(row.get("id"), str | int) else {}
    return Record(name, tuple(turns), blobs, note)


def _turns(row: Mapping[str, Any]) -> tuple[list[Turn], list[Any]]:
    """The turns, and pictures that stand inside them."""
    if row.get("conversations") is not None:
        return [Turn(_role(t["from"]), str(t["value"])) for t in row["conversations"]], []
    if row.get("messages") is not None:
        inner: list[Any] = []
        turns = [Turn(_role(m["role"]), _content(m["content"], inner)) for m in row["messages"]]
        return turns, inner
    if row.get("texts") is not None:
        pairs = [(("user", t["user"]), ("assistant", t["assistant"])) for t in row["texts"]]
        return [Turn(_role(role), str(said)) for pair in pairs for role, said in pair], []
    caption = row.get("caption", row.get("text"))
    if caption is None:
        raise ValueError("expected 'conversations', 'messages', 'texts', 'caption' or 'text'")
    return [Turn("user", ""), Turn("assistant", str(caption))], []


def _role(name: str) -> Role:
    if name not in ROLES:
        raise ValueError(f"a turn is by {name!r}; expected one of {sorted(ROLES)}")
    return ROLES[name]


def _content(content: Any, pictures: list[Any]) -> str:
    """A message's text; its own pictures are appended to `pictures`."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if part["type"] == "text":
            texts.append(str(part["text"]))
        elif part["type"] == "image":
            texts.append(MARKER)
            pictures += _listed(part.get("image"))
        else:
            raise ValueError(f"a message has a part of type {part['type']!r}; expected text, image")
    return "".join(texts)


def _with_markers(turns: list[Turn], number: int) -> list[Turn]:
    first = next((i for i, turn in enumerate(turns) if turn.role == "user"), 0)
    marked = Turn(turns[first].role, f"{MARKER}\n" * number + turns[first].text)
    return [*turns[:first], marked, *turns[first + 1 :]]


def _listed(value: Any) -> Iterable[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _blob(picture: Any, folder: Path | None) -> Blob:
    if isinstance(picture, Blob):
        return picture
    if isinstance(picture, bytes):
        return Blob(f"of {len(picture)} bytes", data=picture)
    if isinstance(picture, Mapping):
        if picture.get("bytes") is not None:
            return Blob(str(picture.get("path") or "without a name"), data=picture["bytes"])
        picture = picture["path"]
    if not isinstance(picture, str | Path):
        raise ValueError(f"a picture is {type(picture).__name__}; expected a path or bytes")
    if folder is None:
        return Blob(str(picture), path=Path(picture))
    path = (folder / picture).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"picture '{picture}' is outside the folder {folder}")
    return Blob(str(picture), path=path)
