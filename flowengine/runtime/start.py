"""Where a run begins: at its first step, or behind a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowengine.api import Source
from flowengine.checkpoint import find_checkpoint, open_checkpoint
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

    checkpoint: the directory that holds the weights; None begins with new ones.
    dead_letters: samples to leave out. alone: samples to be put into packs of their own.
    """

    step: int = 0
    round: int = 0
    losses: tuple[float, ...] = ()
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
    `path`; behind the last step nothing is left but to write the weights. CheckpointError if there
    is no checkpoint, or if it is another graph's or of a longer run."""
    directory = find_checkpoint(path)
    manifest = open_checkpoint(directory)
    manifest.refuse_another(graph, path=directory)
    return Start(
        step=manifest.step,
        round=_first_round(graph, manifest.step, path=directory),
        losses=tuple(manifest.losses),
        checkpoint=directory.absolute(),
        dead_letters=tuple(DeadLetter(**letter) for letter in manifest.dead_letters),
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
