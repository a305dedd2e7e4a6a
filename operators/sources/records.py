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

CLIP_MARKER = "<video>"
"""Where a clip stands, in the texts of a record that has any."""


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
class Clip:
    """Frames of one size, two per second."""

    frames: tuple[Blob, ...]


@dataclass(frozen=True)
class Turn:
    """What one side says. `text` has a MARKER for each picture, a CLIP_MARKER for each clip."""

    role: Role
    text: str


@dataclass(frozen=True)
class Record:
    """One conversation. where: its name in messages: file, number, and id if it has one.
    pictures, clips: each in the order of their markers."""

    where: str
    turns: tuple[Turn, ...]
    pictures: tuple[Blob, ...] = ()
    clips: tuple[Clip, ...] = ()
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
    video: a clip as a list of its frames; videos: several        with any of them

    folder: where relative picture paths start. Pictures, and clips, without markers come first in
    the first user's turn. Raises SampleError for anything else.
    """
    name = f"{where} (id {row['id']!r})" if row.get("id") not in (None, "") else where
    pictures = [*_listed(row.get("image")), *_listed(row.get("images"))]
    try:
        turns, inner, inner_clips = _turns(row)
        blobs = tuple(_blob(picture, folder) for picture in [*inner, *pictures])
        clips = tuple(_clip(frames, folder) for frames in [*inner_clips, *_clips(row)])
    except (KeyError, TypeError, ValueError) as error:
        text = f"it has no '{error.args[0]}'" if isinstance(error, KeyError) else str(error)
        raise SampleError(f"{name}: {text}; its keys are {sorted(row)}") from None
    if clips:
        turns = _marked(turns, CLIP_MARKER, len(clips), what="clips", name=name)
    turns = _marked(turns, MARKER, len(blobs), what="pictures", name=name)
    note = {"id": row["id"]} if isinstance(row.get("id"), str | int) else {}
    return Record(name, tuple(turns), blobs, clips, note)


def _marked(turns: list[Turn], marker: str, number: int, *, what: str, name: str) -> list[Turn]:
    """The turns with as many markers as there are media; SampleError if there are others."""
    found = sum(turn.text.count(marker) for turn in turns)
    if number and not found:
        return _with_markers(turns, marker, number)
    if found != number:
        raise SampleError(
            f"{name}: {found} '{marker}' in its text but {number} {what}; expected as many"
        )
    return turns


def _turns(row: Mapping[str, Any]) -> tuple[list[Turn], list[Any], list[Any]]:
    """The turns, and pictures and clips that stand inside them."""
    inner: list[Any] = []
    clips: list[Any] = []
    if row.get("conversations") is not None:
        turns = [Turn(_role(t["from"]), str(t["value"])) for t in row["conversations"]]
        return turns, inner, clips
    if row.get("messages") is not None:
        turns = [
            Turn(_role(m["role"]), _content(m["content"], inner, clips)) for m in row["messages"]
        ]
        return turns, inner, clips
    if row.get("texts") is not None:
        pairs = [(("user", t["user"]), ("assistant", t["assistant"])) for t in row["texts"]]
        turns = [Turn(_role(role), str(said)) for pair in pairs for role, said in pair]
        return turns, inner, clips
    caption = row.get("caption", row.get("text"))
    if caption is None:
        raise ValueError("expected 'conversations', 'messages', 'texts', 'caption' or 'text'")
    return [Turn("user", ""), Turn("assistant", str(caption))], inner, clips


def _role(name: str) -> Role:
    if name not in ROLES:
        raise ValueError(f"a turn is by {name!r}; expected one of {sorted(ROLES)}")
    return ROLES[name]


def _content(content: Any, pictures: list[Any], clips: list[Any]) -> str:
    """A message's text; its own pictures and clips are appended."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if part["type"] == "text":
            texts.append(str(part["text"]))
        elif part["type"] == "image":
            texts.append(MARKER)
            pictures += _listed(part.get("image"))
        elif part["type"] == "video":
            texts.append(CLIP_MARKER)
            clips += _clips(part)
        else:
            raise ValueError(
                f"a message has a part of type {part['type']!r}; expected text, image, video"
            )
    return "".join(texts)


def _with_markers(turns: list[Turn], marker: str, number: int) -> list[Turn]:
    first = next((i for i, turn in enumerate(turns) if turn.role == "user"), 0)
    marked = Turn(turns[first].role, f"{marker}\n" * number + turns[first].text)
    return [*turns[:first], marked, *turns[first + 1 :]]


def _listed(value: Any) -> Iterable[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _clips(row: Mapping[str, Any]) -> list[Any]:
    one = row.get("video")
    return [*([] if one is None else [one]), *_listed(row.get("videos"))]


def _clip(frames: Any, folder: Path | None) -> Clip:
    if not isinstance(frames, list | tuple) or not frames:
        raise ValueError(
            f"a clip is {type(frames).__name__}; expected a list of its frames, two per second: "
            "take them out of a film beforehand"
        )
    return Clip(tuple(_blob(frame, folder) for frame in frames))


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
