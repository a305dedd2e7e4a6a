"""`run`: checks a graph, makes its run directory, runs it, and gives back the report."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from flowengine.graph import Graph, check
from flowengine.observe.page import write_page
from flowengine.observe.rates import Peak
from flowengine.observe.record import Recorder
from flowengine.runtime import Runtime, execute
from flowengine.runtime.events import Event, Observer
from flowengine.runtime.execute import STALL_S
from flowengine.runtime.replay import Replay, plan_replay
from flowengine.runtime.start import BEGINNING, start_behind
from flowengine.shortage import naming_shortages

MAX_RESTARTS = 4


def run(
    graph: Graph,
    *,
    runtime: Runtime = "local",
    address: str | None = None,
    run_dir: Path | None = None,
    resume: Path | None = None,
    max_restarts: int = MAX_RESTARTS,
    stall_s: float = STALL_S,
    torch_profiler: Sequence[range] = (),
    peak: Peak | None = None,
    predicted: Mapping[str, Any] | None = None,
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    """Trains the graph; the report that report.json holds too (flowengine.observe.report).

    runtime: "local" has a process per stage replica, "inline" runs everything in this one,
        "ray" has an actor per stage replica on the cluster at `address`, or on one started here.
    run_dir: a new or empty directory; None makes runs/<graph>-<UTC time>.
    resume: a checkpoint, or a run directory whose newest one is meant: the run goes on behind it.
    max_restarts: how often the run may go back to its last checkpoint after a worker's death.
    stall_s: after so many seconds in which nobody is at work the run is given up (local runtime).
    torch_profiler: the steps in which torch's profiler notes operators and kernels, for
    `flowengine trace`.
    peak: of all devices together, for the MFU (flowengine.observe.rates); None does not count
    operations.
    predicted: what the plan expects that the graph was given; the report puts it beside what is
    measured.
    observers: called with every event of the run (flowengine.runtime.events).
    Raises GraphError or CheckpointError before anything starts, FileExistsError if `run_dir` has
    files, and RunError when the run ends early; the files of the run directory are complete then,
    too.
    """
    check(graph)
    start = start_behind(graph, resume) if resume is not None else BEGINNING
    graph.counts_flops = peak is not None
    run_dir = make_run_dir(graph, run_dir)
    with (
        naming_shortages(f"run '{graph.name}' in {run_dir}"),
        _paged(run_dir),
        Recorder(
            graph, run_dir=run_dir, command=sys.argv, peak=peak, predicted=predicted
        ) as recorder,
    ):
        listeners: list[Observer] = [recorder, *observers]

        def observe(event: Event) -> None:
            for listener in listeners:
                listener(event)

        execute(
            graph,
            runtime=runtime,
            address=address,
            run_dir=run_dir,
            observe=observe,
            start=start,
            max_restarts=max_restarts,
            stall_s=stall_s,
            profile=torch_profiler,
        )
    assert recorder.report is not None
    return recorder.report


def replay(
    graph: Graph,
    samples: Sequence[int],
    *,
    behind: Path | None = None,
    observe: Observer = lambda _: None,
) -> Replay:
    """Runs these samples of one step again, alone, in this process; what was run.

    behind: a checkpoint, or a run directory, whose weights are used; None: those of a new run.
    RunError if they fail again; GraphError and CheckpointError as plan_replay says. For an operator
    to be looked at in a debugger, where it stands.
    """
    check(graph)
    planned = plan_replay(graph, samples, behind=behind)
    with tempfile.TemporaryDirectory() as folder:
        planned.run(run_dir=Path(folder), observe=observe)
    return planned


@contextmanager
def _paged(run_dir: Path) -> Iterator[None]:
    """Leaves report.html, however the run within ends."""
    try:
        yield
    finally:
        write_page(run_dir)


def make_run_dir(graph: Graph, run_dir: Path | None = None) -> Path:
    """The directory, made if it is not there; FileExistsError if it has files already."""
    if run_dir is None:
        return _make_new(Path("runs"), f"{graph.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise FileExistsError(f"{run_dir}: exists and is not empty; name a new run directory")
    run_dir.mkdir(parents=True, exist_ok=True)
    return run_dir


def _make_new(parent: Path, name: str) -> Path:
    """parent/name, or the first of name-2, name-3, ... that is free."""
    parent.mkdir(parents=True, exist_ok=True)
    for attempt in count(1):
        path = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("count does not end")
