"""A whole checkpoint: the directory `step-<steps done>` with a part per stage and a manifest.

    manifest.json   {"format", "graph", "step", "description", "machine", "parts", "losses",
                     "dead_letters"}

The directory gets its name when all of it is on the disk: what has the name is whole.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flowengine.checkpoint.description import describe_graph, find_differences
from flowengine.errors import CheckpointError
from flowengine.graph import Graph

FORMAT = 1
FOLDER = "checkpoints"


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself.

    graph: its name. step: the training steps behind it. description: what makes another graph the
    same (describe_graph). machine: see describe_machine. parts: the stages that have one.
    losses: per step so far. dead_letters: samples that are left out, {"sample", "stage", "reason"}.
    plans: what the next plans depend on besides the lengths (flowengine.runtime.plans).
    """

    graph: str
    step: int
    description: dict[str, Any]
    machine: dict[str, Any]
    parts: list[str]
    losses: list[float]
    dead_letters: list[dict[str, Any]] = field(default_factory=list)
    plans: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def refuse_another(self, graph: Graph, *, path: Path) -> None:
        """CheckpointError, with every difference, unless `graph` is the same training."""
        differences = find_differences(self.description, describe_graph(graph))
        if differences:
            lines = "".join(f"\n  {difference}" for difference in differences)
            raise CheckpointError(
                f"{path}: is a checkpoint of another graph than {graph}:{lines}\nresume with the "
                "graph it was made by, or start anew without --resume"
            )


def open_checkpoint(directory: Path) -> Manifest:
    """The manifest of a checkpoint's directory; CheckpointError if there is none to be read."""
    try:
        values = json.loads((directory / "manifest.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{directory}: is no whole checkpoint: {error}") from None
    if values.get("format") != FORMAT:
        raise CheckpointError(
            f"{directory}: has format {values.get('format')}, this version reads {FORMAT}"
        )
    return Manifest(**values)


def find_checkpoint(path: Path) -> Path:
    """`path` itself if it is a checkpoint, else the newest of the run directory `path`."""
    if (path / "manifest.json").is_file():
        return path
    newest = newest_checkpoint(path)
    if newest is None:
        raise CheckpointError(
            f"{path}: holds no checkpoint; expected a run directory with checkpoints/step-*, or "
            "one of these; graph.checkpoint(every=...) makes them"
        )
    return newest


def newest_checkpoint(run_dir: Path) -> Path | None:
    """The newest checkpoint of a run directory, if it has one."""
    whole = whole_checkpoints(run_dir / FOLDER)
    return whole[-1] if whole else None


def find_run(folder: Path, graph: str) -> Path:
    """The run directory, of those that `folder` holds of this graph, with the newest checkpoint."""
    manifests = list(folder.glob(f"{graph}-*/{FOLDER}/step-*/manifest.json"))
    if not manifests:
        raise CheckpointError(
            f"{folder}: holds no run of graph '{graph}' with a checkpoint; pass --resume PATH, or "
            "run without --resume"
        )
    return max(manifests, key=lambda path: path.stat().st_mtime).parents[2]


def whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run's folder, the oldest first."""
    found = folder.glob("step-*/manifest.json")
    return sorted((path.parent for path in found), key=lambda path: int(path.name[5:]))
