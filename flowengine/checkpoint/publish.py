"""The supervisor's side: when all parts of a checkpoint are written, it becomes one.

The stages write into a directory with a name that nobody takes for a checkpoint. It is renamed once
every part and the manifest are on the disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flowengine.checkpoint.description import describe_graph, describe_machine
from flowengine.checkpoint.disk import sync, write_synced
from flowengine.checkpoint.manifest import FOLDER, Manifest, whole_checkpoints
from flowengine.graph import Graph
from flowengine.shortage import naming_shortages


def partial_dir(run_dir: Path, step: int) -> Path:
    """Where the stages write their parts of the checkpoint after `step` training steps."""
    return run_dir / FOLDER / f".step-{step:08d}.partial"


class Publisher:
    """Makes checkpoints whole, and removes those that are older than `keep_last`.

    parts: the stages that write one. losses, dead_letters: give those known so far.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        run_dir: Path,
        parts: Sequence[str],
        keep_last: int,
        losses: Callable[[], list[float]],
        dead_letters: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        self._graph = graph
        self._folder = run_dir / FOLDER
        self._parts = list(parts)
        self._keep_last = keep_last
        self._losses = losses
        self._dead_letters = dead_letters
        for left in self._folder.glob(".step-*"):
            shutil.rmtree(left)

    def poll(self) -> list[tuple[int, Path]]:
        """Publishes what is complete; steps and directories of the new checkpoints.
        OutOfBudgetError where the disk is full."""
        published = []
        for partial in sorted(self._folder.glob(".step-*.partial")):
            step = int(partial.name.split("-")[1].split(".")[0])
            losses = self._losses()
            complete = all((partial / f"{name}.json").is_file() for name in self._parts)
            if complete and len(losses) >= step:
                published.append((step, self._publish(partial, step, losses[:step])))
        return published

    def _publish(self, partial: Path, step: int, losses: list[float]) -> Path:
        manifest = Manifest(
            graph=self._graph.name,
            step=step,
            description=describe_graph(self._graph),
            machine=describe_machine(),
            parts=self._parts,
            losses=losses,
            dead_letters=self._dead_letters(),
        )
        with naming_shortages(f"{partial}: the manifest cannot be written"):
            write_synced(partial / "manifest.json", manifest.to_json())
        final = self._folder / f"step-{step:08d}"
        if final.exists():
            _remove(final)
        partial.rename(final)
        sync(self._folder)
        for old in whole_checkpoints(self._folder)[: -self._keep_last]:
            _remove(old)
        return final


def _remove(checkpoint: Path) -> None:
    """First its name: a checkpoint that is half removed must not look whole."""
    nameless = checkpoint.with_name(f".{checkpoint.name}.old")
    checkpoint.rename(nameless)
    shutil.rmtree(nameless)
