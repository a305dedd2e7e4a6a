"""Where a run begins: at its first step, or behind a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
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

    first_sample: those below are trained.
    checkpoint: the directory that holds the weights; None begins with new ones.
    dead_letters: samples to leave out. alone: samples to be put into packs of their own.
    """

    step: int = 0
    round: int = 0
    losses: tuple[float, ...] = ()
    first_sample: int = 0
    checkpoint: Path | None = None
    dead_letters: tuple[DeadLetter, ...] = ()
    alone: frozenset[int] = frozenset()

    @property
    def left_out(self) -> frozenset[int]:
        """The ids of the dead letters."""
        return frozenset(letter.sample for letter in self.dead_letters)


BEGINNING = Start()


def start_behind(graph: Graph, path: Path) -> Start:
    """The start behind the newest checkpoint of the run directory `path`, or behind the checkpoint
    `path`. CheckpointError if there is none, if it is another graph's, or if nothing is left to
    train behind it."""
    directory = find_checkpoint(path)
    start = _start_behind(graph, directory)
    if start.round == len(list(stretches(graph, _source_of(graph)))):
        total = num_steps(graph, _source_of(graph))
        raise CheckpointError(
            f"{directory}: is behind step {start.step}, and the run has {total}; pass a larger "
            "steps= to go on"
        )
    return start


def start_behind_newest(graph: Graph, run_dir: Path) -> Start | None:
    """Where a run goes on after a death: behind its newest checkpoint, also if only its weights are
    left to be written; None if it has none yet."""
    newest = newest_checkpoint(run_dir)
    return None if newest is None else _start_behind(graph, newest)


def start_from(manifest: Manifest, graph: Graph, *, directory: Path) -> Start:
    """The start behind the checkpoint that `directory` holds."""
    return Start(
        step=manifest.step,
        round=_first_round(graph, manifest.step),
        losses=tuple(manifest.losses),
        first_sample=manifest.step * graph.step.samples,
        checkpoint=directory,
        dead_letters=tuple(DeadLetter(**letter) for letter in manifest.dead_letters),
    )


def _start_behind(graph: Graph, directory: Path) -> Start:
    manifest = open_checkpoint(directory)
    manifest.refuse_another(graph, path=directory)
    return start_from(manifest, graph, directory=directory.absolute())


def _first_round(graph: Graph, step: int) -> int:
    """The first round that does not come before this many steps; the number of rounds if all do."""
    number = 0
    for stretch in stretches(graph, _source_of(graph)):
        if stretch.step >= step:
            return stretch.number
        number = stretch.number + 1
    return number


def _source_of(graph: Graph) -> Source[Any]:
    return next(stage.what for stage in graph.stages if isinstance(stage.what, Source))
