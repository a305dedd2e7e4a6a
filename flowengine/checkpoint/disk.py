"""Files that are whole or not there, also after a crash."""

from __future__ import annotations

import os
from pathlib import Path


def write_synced(path: Path, text: str) -> None:
    """Writes the file: a reader, also after a crash, sees all of it or the one before."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    sync(part)
    part.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Returns when the file, or the folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
