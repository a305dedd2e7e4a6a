"""Where a run begins: at its first step, or behind a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowengine.api import Source
from flowengine.checkpoint import Manifest, find_checkpoint, newest_checkpoint, open_checkpoint
from flowengine.errors import CheckpointError
from flowengine.graph import Graph
from flowengine.runtime.round import num_steps, stretches


@dataclass(frozen=True)
class DeadLetter:
    """A sample that is left out of training, the stage that could not take it, and why."""

    sample: int
    stage: str
    reason: str


@dataclass(frozen=True)
class Start:
    """step: training steps behind it, and `losses` theirs. round: the first round's number.

    first_sample: those below are trained, but for what the plans left over.
    checkpoint: the directory that holds the weights; None begins with new ones.
    dead_letters: samples to leave out. alone: samples to be put into packs of their own. plans:
    what the next plans depend on, see flowengine.runtime.plans.
    """

    step: int = 0
    round: int = 0
    losses: tuple[float, ...] = ()
    first_sample: int = 0
    checkpoint: Path | None = None
    dead_letters: tuple[DeadLetter, ...] = ()
    alone: frozenset[int] = frozenset()
    plans: Mapping[str, Any] = field(default_factory=dict)

    @property
    def left_out(self) -> frozenset[int]:
        """The ids of the dead letters."""
        return frozenset(letter.sample for letter in self.dead_letters)


BEGINNING = Start()


def start_behind(graph: Graph, path: Path) -> Start:
    """The start behind the newest checkpoint of the run directory `path`, or behind the checkpoint
    `path`; behind the last step nothing is left but to write the weights. CheckpointError if there
    is no checkpoint, or if it is another graph's or of a longer run."""
    directory = find_checkpoint(path)
    manifest = open_checkpoint(directory)
    manifest.refuse_another(graph, path=directory)
    return start_from(manifest, graph, directory=directory.absolute())


def start_behind_newest(graph: Graph, run_dir: Path) -> Start | None:
    """The same behind the newest checkpoint of a run directory; None if it has none yet."""
    newest = newest_checkpoint(run_dir)
    return None if newest is None else start_behind(graph, newest)


def start_from(manifest: Manifest, graph: Graph, *, directory: Path) -> Start:
    """The start behind the checkpoint that `directory` holds; CheckpointError if the run ends
    there."""
    return Start(
        step=manifest.step,
        round=_first_round(graph, manifest.step, path=directory),
        losses=tuple(manifest.losses),
        first_sample=manifest.step * graph.step.samples,
        checkpoint=directory,
        dead_letters=tuple(DeadLetter(**letter) for letter in manifest.dead_letters),
        plans=manifest.plans,
    )


def _first_round(graph: Graph, step: int, *, path: Path) -> int:
    source = next(stage.what for stage in graph.stages if isinstance(stage.what, Source))
    total = num_steps(graph, source)
    if step > total:
        raise CheckpointError(
            f"{path}: is behind step {step}, and the run has {total}; pass a larger steps= to go on"
        )
    number = 0
    for stretch in stretches(graph, source):
        if stretch.step >= step:
            return stretch.number
        number = stretch.number + 1
    return number
