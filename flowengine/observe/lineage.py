"""What the saved catalogue of a run says of a sample, or of a step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq


@dataclass(frozen=True)
class Entry:
    """One row of the catalogue; the fields are its columns (flowengine.pool.catalogue)."""

    sample: int
    step: int
    held_out: bool
    pack: int
    stage: str
    replica: int
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    address: int
    tier: str
    version: int | None
    tokens: int
    made_s: float
    returned_s: float
    state: str


def entries_of_sample(run_dir: Path, sample: int) -> list[Entry]:
    """All entries of a sample, in the order in which they were made; FileNotFoundError without a
    catalogue."""
    return _entries(run_dir, pc.field("sample") == sample, order=("made_s",))


def entries_of_step(run_dir: Path, step: int) -> list[Entry]:
    """All entries of a training step, pack by pack; FileNotFoundError without a catalogue."""
    chosen = (pc.field("step") == step) & ~pc.field("held_out")
    return _entries(run_dir, chosen, order=("pack", "sample", "made_s"))


def _entries(run_dir: Path, chosen: Any, *, order: tuple[str, ...]) -> list[Entry]:
    path = run_dir / "catalogue.parquet"
    if not path.exists():
        raise FileNotFoundError(f"{run_dir} has no catalogue.parquet; name a run's directory")
    table = pq.read_table(path, filters=chosen)
    rows = table.sort_by([(name, "ascending") for name in order]).to_pylist()
    return [Entry(**{**row, "shape": tuple(row["shape"])}) for row in rows]
