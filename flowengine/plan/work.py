"""A graph's first steps as work: which samples form which packs, from lengths alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flowengine.api import Context, Encoder, Lengths, Objective, Packer, Source
from flowengine.api.operator import Operator
from flowengine.errors import PlanError
from flowengine.graph import Graph
from flowengine.graph.description import StageSpec
from flowengine.plan.deployment import PackWork, StepWork
from flowengine.plan.load import TOKENS, load_of
from flowengine.schedule.arrival import fill_in_order


def stage_of(graph: Graph, kind: type[Operator]) -> StageSpec:
    """The graph's one stage of this kind; PlanError if there is none."""
    for stage in graph.stages:
        if isinstance(stage.what, kind):
            return stage
    raise PlanError(
        f"{graph}: has no {kind.__name__.lower()}; expected source, encoders, packer and objective"
    )


def trainable_stages(graph: Graph) -> tuple[list[StageSpec], StageSpec]:
    """The encoders, in the graph's order, and the objective."""
    encoders = [stage for stage in graph.stages if isinstance(stage.what, Encoder)]
    return encoders, stage_of(graph, Objective)


def modality_of_load(stage: StageSpec) -> str:
    """Whose rows this stage's work is counted in."""
    return stage.what.modality if isinstance(stage.what, Encoder) else TOKENS


@contextmanager
def opened(graph: Graph, stage: StageSpec) -> Iterator[Any]:
    """The stage's operator, opened as a run would, in a directory that is thrown away."""
    with TemporaryDirectory() as directory:
        context = Context(
            stage=stage.name,
            replica=0,
            num_replicas=1,
            seed=graph.seed,
            run_dir=Path(directory),
            report=_ignore,
        )
        assert isinstance(stage.what, Operator)
        stage.what.open(context)
        try:
            yield stage.what
        finally:
            stage.what.close()


def read_lengths(graph: Graph, *, steps: int) -> list[list[Lengths]]:
    """The lengths of the first steps' samples, a list per step; a finite source begins again."""
    with opened(graph, stage_of(graph, Source)) as source:
        total, size = source.num_samples(), graph.step.samples
        if total == 0:
            raise PlanError(f"{graph}: its source has no samples; there is nothing to plan for")
        return [
            [
                source.lengths(at if total is None else at % total)
                for at in range(start, start + size)
            ]
            for start in range(0, steps * size, size)
        ]


def plan_work(
    graph: Graph, lengths: Sequence[Sequence[Lengths]], *, arrival: bool = False
) -> list[StepWork]:
    """The steps' packs as the graph's packer plans them.

    arrival: without a scheduler: samples share a pack in the order in which they come, as many as
    fit.
    """
    stage = stage_of(graph, Packer)
    modalities = [modality_of_load(each) for each in trainable_stages(graph)[0]]
    with opened(graph, stage) as packer:
        size = graph.step.samples
        found = []
        for number, step in enumerate(lengths):
            tokens = [sample.tokens for sample in step]
            in_order = fill_in_order(tokens, max_tokens=packer.max_tokens) if arrival else None
            packs = packer.plan(step) if in_order is None else in_order
            found.append(_work(step, packs, modalities, first=number * size))
        return found


def _ignore(name: str, value: object) -> None:
    """Operators report to a run; here is none."""


def _work(
    lengths: Sequence[Lengths],
    packs: Sequence[Sequence[int]],
    modalities: Sequence[str],
    *,
    first: int,
) -> StepWork:
    found = []
    for pack in packs:
        members = [lengths[index] for index in pack]
        loads = {name: load_of(members, name) for name in (*modalities, TOKENS)}
        ids = [first + index for index in pack]
        found.append(PackWork(loads, ids, sum(m.tokens for m in members)))
    return StepWork(found)
