"""Runs a graph on one of the runtimes, and on again where a worker died."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flowengine.api import Packer, Source
from flowengine.errors import InterruptedRunError, WorkerLostError
from flowengine.graph import Graph
from flowengine.runtime.events import LeftOut, Observer, Restarted, RunFailed, RunStarted
from flowengine.runtime.inline import InlineRun
from flowengine.runtime.recovery import Recovery
from flowengine.runtime.round import num_steps
from flowengine.runtime.start import BEGINNING, Start, start_behind_newest

if TYPE_CHECKING:
    from flowengine.runtime.local import LocalRun

Runtime = Literal["inline", "local", "ray"]
STALL_S = 60.0


def execute(
    graph: Graph,
    *,
    runtime: Runtime,
    address: str | None = None,
    run_dir: Path,
    observe: Observer,
    start: Start = BEGINNING,
    max_restarts: int = 0,
    stall_s: float = STALL_S,
    profile: Sequence[range] = (),
) -> None:
    """Runs a checked graph to its end and writes its weights to run_dir/weights.

    address: of the Ray cluster, for the ray runtime.
    max_restarts: how often the run may go back to its last checkpoint after a worker's death.
    stall_s: after so many seconds in which nobody is at work the run is given up (local runtime).
    profile: the steps that torch's profiler is on.
    RunError if it ends early, after `observe` was told.
    """
    began = time.perf_counter()
    source = next(stage.what for stage in graph.stages if isinstance(stage.what, Source))
    names = tuple(stage.name for stage in graph.stages)
    observe(RunStarted(graph.name, runtime, run_dir, num_steps(graph, source), names))
    for letter in start.dead_letters:
        observe(LeftOut(letter.sample, 0.0, letter.stage, letter.reason))
    try:
        for stage in graph.stages:
            if isinstance(stage.what, Packer):
                stage.what.prepare()
        if runtime == "inline":
            InlineRun(graph, run_dir=run_dir, observe=observe, start=start, profile=profile).run()
        else:
            with _supervised(runtime, address) as kind:
                _run_again(
                    kind, graph, run_dir, observe, start, max_restarts, began, stall_s, profile
                )
    except InterruptedRunError:
        raise
    except BaseException as error:
        observe(RunFailed(time.perf_counter() - began, f"{type(error).__name__}: {error}"))
        raise


@contextmanager
def _supervised(runtime: Runtime, address: str | None) -> Iterator[type[LocalRun]]:
    """What runs the graph in other processes, here or on a cluster."""
    if runtime == "ray":
        from flowengine.runtime.cluster.connect import connected

        with connected(address):
            from flowengine.runtime.cluster.run import RayRun

            yield RayRun
    else:
        from flowengine.runtime.local import LocalRun

        yield LocalRun


def _run_again(
    kind: type[LocalRun],
    graph: Graph,
    run_dir: Path,
    observe: Observer,
    start: Start,
    max_restarts: int,
    began: float,
    stall_s: float,
    profile: Sequence[range],
) -> None:
    recovery = Recovery(
        start, newest=lambda: start_behind_newest(graph, run_dir), max_restarts=max_restarts
    )
    while True:
        try:
            kind(
                graph,
                run_dir=run_dir,
                observe=observe,
                start=start,
                began=began,
                stall_s=stall_s,
                profile=profile,
            ).run()
            return
        except WorkerLostError as lost:
            before, start = start, recovery.restart(lost)
            now = time.perf_counter() - began
            for letter in start.dead_letters:
                if letter.sample not in before.left_out:
                    observe(LeftOut(letter.sample, now, letter.stage, letter.reason))
            observe(Restarted(start.step, now, recovery.restarts, str(lost)))
