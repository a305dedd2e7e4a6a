"""A run's checkpoints on the disk.

checkpoints/.step-<step>.partial   what the stages write into; nobody takes it for a checkpoint
checkpoints/step-<step>            whole: renamed once every part and the manifest are there
checkpoints/.step-<step>.old       about to be removed
"""

from __future__ import annotations

import shutil
from pathlib import Path

from flowengine.checkpoint.disk import sync, write_synced
from flowengine.checkpoint.manifest import FOLDER, Manifest, whole_checkpoints
from flowengine.shortage import naming_shortages


def partial_dir(run_dir: Path, step: int) -> Path:
    """Where the stages write their parts of the checkpoint after `step` training steps."""
    return run_dir / FOLDER / f".step-{step:08d}.partial"


class Folder:
    """Of one run."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._path = run_dir / FOLDER

    def sweep(self) -> None:
        """Removes what never became a checkpoint; while nobody writes."""
        for left in self._path.glob(".step-*"):
            shutil.rmtree(left)

    def find_parts(self) -> dict[int, set[str]]:
        """The parts that are whole, of the checkpoints being written, by step."""
        found = {}
        for partial in sorted(self._path.glob(".step-*.partial")):
            step = int(partial.name.split("-")[1].split(".")[0])
            found[step] = {path.stem for path in partial.glob("*.json")}
        return found

    def publish(self, manifest: Manifest) -> Path:
        """Makes a checkpoint of what was written for the manifest's step; its directory.
        OutOfBudgetError where the disk is full."""
        partial = partial_dir(self._run_dir, manifest.step)
        with naming_shortages(f"{partial}: the manifest cannot be written"):
            write_synced(partial / "manifest.json", manifest.to_json())
        final = self._path / f"step-{manifest.step:08d}"
        if final.exists():
            _remove(final)
        partial.rename(final)
        sync(self._path)
        return final

    def keep_last(self, count: int) -> None:
        """Removes all but the newest checkpoints."""
        for old in whole_checkpoints(self._path)[:-count]:
            _remove(old)


def _remove(checkpoint: Path) -> None:
    """First its name: a checkpoint that is half removed must not look whole."""
    nameless = checkpoint.with_name(f".{checkpoint.name}.old")
    checkpoint.rename(nameless)
    shutil.rmtree(nameless)
