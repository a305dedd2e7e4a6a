"""Where stages keep their parts of checkpoints, and find them again."""

from __future__ import annotations

from pathlib import Path

from flowengine.checkpoint.part import Part, read_part
from flowengine.checkpoint.writer import PartWriter


class PartStore:
    """The disk."""

    def writer(self, name: str) -> PartWriter:
        """Writes the part of that name."""
        return PartWriter(name)

    def read(self, directory: Path, name: str) -> Part:
        """The part of that name of a whole checkpoint; CheckpointError as read_part."""
        return read_part(directory, name)
