"""Runs a graph for a test and gathers what it said."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from flowengine import Graph, check
from flowengine.runtime import Runtime, execute
from flowengine.runtime.events import (
    CatalogueRows,
    Event,
    LeftOut,
    Observer,
    Reported,
    Restarted,
    RunDone,
    StepDone,
)
from flowengine.runtime.start import BEGINNING, start_behind


@dataclass
class Ran:
    """What a run said: its steps, reports, catalogue columns and final weights by stage."""

    steps: list[StepDone] = field(default_factory=list)
    reports: list[Reported] = field(default_factory=list)
    catalogue: dict[str, list[Any]] = field(default_factory=dict)
    weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    restarts: list[Restarted] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    done: RunDone | None = None

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.steps]

    def rows(self, stage: str) -> list[dict[str, Any]]:
        """The catalogue's rows of a stage's payloads."""
        names = list(self.catalogue)
        rows = [
            dict(zip(names, row, strict=True)) for row in zip(*self.catalogue.values(), strict=True)
        ]
        return [row for row in rows if row["stage"] == stage]


def run_graph(
    graph: Graph,
    tmp_path: Path,
    *,
    runtime: Runtime = "inline",
    resume: Path | None = None,
    max_restarts: int = 0,
    observe: Observer | None = None,
) -> Ran:
    """Checks and runs the graph in a directory of its own, behind a checkpoint if there is one."""
    check(graph)
    start = start_behind(graph, resume) if resume is not None else BEGINNING
    ran = Ran()

    def listen(event: Event) -> None:
        if observe is not None:
            observe(event)
        if isinstance(event, StepDone):
            ran.steps.append(event)
        elif isinstance(event, Restarted):
            ran.restarts.append(event)
            ran.steps = [step for step in ran.steps if step.step < event.step]
        elif isinstance(event, LeftOut):
            ran.left_out.append(event.sample)
        elif isinstance(event, Reported):
            ran.reports.append(event)
        elif isinstance(event, CatalogueRows):
            for name, column in event.columns.items():
                ran.catalogue.setdefault(name, []).extend(column)
        elif isinstance(event, RunDone):
            ran.done = event

    execute(
        graph,
        runtime=runtime,
        run_dir=tmp_path,
        observe=listen,
        start=start,
        max_restarts=max_restarts,
    )
    assert ran.done is not None
    for stage, file in ran.done.weights.items():
        ran.weights[stage] = load_file(tmp_path / file)
    return ran
