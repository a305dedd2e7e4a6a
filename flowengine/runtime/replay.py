"""Runs single samples again, in this process, to look at what they do.

Everything else of their step is left out, so their packs are others than they were, and nothing is
written but into `run_dir`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowengine.api import Source
from flowengine.checkpoint import find_checkpoint, open_checkpoint
from flowengine.errors import GraphError
from flowengine.graph import Graph
from flowengine.runtime.events import Observer
from flowengine.runtime.inline import InlineRun
from flowengine.runtime.round import Stretch, stretches
from flowengine.runtime.start import DeadLetter, Start


@dataclass(frozen=True)
class Replay:
    """What is run again: the graph and the start of a run of these samples alone.

    step: the training step they are of. checkpoint: where the weights are from, None: new ones.
    """

    graph: Graph
    start: Start
    step: int
    checkpoint: Path | None

    def run(self, *, run_dir: Path, observe: Observer) -> None:
        """Raises as an inline run does."""
        InlineRun(self.graph, run_dir=run_dir, observe=observe, start=self.start).run()


def plan_replay(graph: Graph, samples: Sequence[int], *, behind: Path | None = None) -> Replay:
    """The run of these samples, all of one step, or all held out (ids below 0).

    behind: a checkpoint, or a run directory whose newest is meant, for the weights. GraphError if
    the samples are of several steps or there are none like them; CheckpointError if there is no
    such checkpoint, or it is another graph's.
    """
    checkpoint = _checkpoint(graph, behind)
    one = copy.copy(graph)
    one.staleness, one.checkpoints = 0, None
    step = _step_of(graph, samples)
    held_out = step is None
    if step is None:
        step = max(1, open_checkpoint(checkpoint).step if checkpoint is not None else 1)
        one.steps = step
    else:
        one.steps = step + 1
    round_ = _round_of(one, step, held_out=held_out)
    trained = set() if held_out else set(range(round_.start, round_.stop))
    ids = trained | {-1 - i for each in one.evaluations for i in range(each.samples)}
    if not ids.issuperset(samples):
        raise GraphError(f"{graph}: has no sample {min(set(samples) - ids)}")
    others = sorted(ids.difference(samples))
    letters = tuple(DeadLetter(i, "source", "not among those to run again") for i in others)
    start = Start(step=step, round=round_.number, checkpoint=checkpoint, dead_letters=letters)
    return Replay(one, start, step, checkpoint)


def _checkpoint(graph: Graph, behind: Path | None) -> Path | None:
    if behind is None:
        return None
    checkpoint = find_checkpoint(behind).absolute()
    open_checkpoint(checkpoint).refuse_another(graph, path=checkpoint)
    return checkpoint


def _step_of(graph: Graph, samples: Sequence[int]) -> int | None:
    """The training step of all of them; None if they are held out."""
    steps = {sample // graph.step.samples if sample >= 0 else None for sample in samples}
    if len(steps) != 1:
        named = ", ".join(sorted({_named(step) for step in steps}))
        raise GraphError(f"{graph}: samples {list(samples)} are of {named}; name some of one step")
    (step,) = steps
    if step is None and not graph.evaluations:
        raise GraphError(f"{graph}: has no evaluation, so no sample {samples[0]}")
    return step


def _named(step: int | None) -> str:
    return "the evaluation" if step is None else f"step {step}"


def _round_of(graph: Graph, step: int, *, held_out: bool) -> Stretch:
    source = next(stage.what for stage in graph.stages if isinstance(stage.what, Source))
    found = [s for s in stretches(graph, source) if (s.step, s.held_out) == (step, held_out)]
    return found[-1]
