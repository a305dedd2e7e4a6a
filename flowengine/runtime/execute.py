"""Runs a graph on one of the runtimes, and on again after a death or a bad sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flowengine.api import Packer, Source
from flowengine.errors import InterruptedRunError, RefusedSampleError, WorkerLostError
from flowengine.graph import Graph
from flowengine.runtime.events import LeftOut, Observer, Restarted, RunFailed, RunStarted
from flowengine.runtime.inline import InlineRun
from flowengine.runtime.recovery import Recovery
from flowengine.runtime.round import num_steps
from flowengine.runtime.start import BEGINNING, Start, start_behind_newest
from flowengine.runtime.topology import Topology

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
        recovery = Recovery(
            start, newest=lambda: start_behind_newest(graph, run_dir), max_restarts=max_restarts
        )
        with _reached(graph, runtime, address):
            run = _runner(runtime, graph, run_dir, observe, began, stall_s, profile)
            _run_on(run, recovery, start, observe, began)
    except InterruptedRunError:
        raise
    except BaseException as error:
        observe(RunFailed(time.perf_counter() - began, f"{type(error).__name__}: {error}"))
        raise


def _reached(graph: Graph, runtime: Runtime, address: str | None) -> AbstractContextManager[None]:
    """Within, the cluster is there, if the runtime needs one."""
    if runtime != "ray":
        return nullcontext()
    from flowengine.runtime.cluster.connect import connected, cpus_of

    return connected(address, num_cpus=sum(map(cpus_of, Topology(graph).workers)))


def _runner(
    runtime: Runtime,
    graph: Graph,
    run_dir: Path,
    observe: Observer,
    began: float,
    stall_s: float,
    profile: Sequence[range],
) -> Callable[[Start], None]:
    """Runs the graph once, from a start on."""
    if runtime == "inline":
        return lambda start: InlineRun(
            graph, run_dir=run_dir, observe=observe, start=start, began=began, profile=profile
        ).run()
    kind = _supervisor(runtime)
    return lambda start: kind(
        graph,
        run_dir=run_dir,
        observe=observe,
        start=start,
        began=began,
        stall_s=stall_s,
        profile=profile,
    ).run()


def _supervisor(runtime: Runtime) -> type[LocalRun]:
    if runtime == "ray":
        from flowengine.runtime.cluster.run import RayRun

        return RayRun
    from flowengine.runtime.local import LocalRun

    return LocalRun


def _run_on(
    run: Callable[[Start], None],
    recovery: Recovery,
    start: Start,
    observe: Observer,
    began: float,
) -> None:
    while True:
        try:
            run(start)
            return
        except (WorkerLostError, RefusedSampleError) as error:
            left_out = start.left_out
            start = recovery.go_on(error)
            now = time.perf_counter() - began
            for letter in start.dead_letters:
                if letter.sample not in left_out:
                    observe(LeftOut(letter.sample, now, letter.stage, letter.reason))
            observe(Restarted(start.step, now, recovery.restarts, str(error)))
