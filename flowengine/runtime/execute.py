"""Runs a graph on one of the runtimes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from flowengine.api import Source
from flowengine.errors import InterruptedRunError
from flowengine.graph import Graph
from flowengine.runtime.events import Observer, RunFailed, RunStarted
from flowengine.runtime.inline import InlineRun
from flowengine.runtime.round import num_steps
from flowengine.runtime.start import BEGINNING, Start

Runtime = Literal["inline", "local"]


def execute(
    graph: Graph,
    *,
    runtime: Runtime,
    run_dir: Path,
    observe: Observer,
    start: Start = BEGINNING,
) -> None:
    """Runs a checked graph to its end and writes its weights to run_dir/weights.

    RunError if it ends early, after `observe` was told.
    """
    began = time.perf_counter()
    source = next(stage.what for stage in graph.stages if isinstance(stage.what, Source))
    names = tuple(stage.name for stage in graph.stages)
    observe(RunStarted(graph.name, runtime, run_dir, num_steps(graph, source), names))
    try:
        if runtime == "inline":
            InlineRun(graph, run_dir=run_dir, observe=observe, start=start).run()
        else:
            from flowengine.runtime.local import LocalRun

            LocalRun(graph, run_dir=run_dir, observe=observe, start=start).run()
    except InterruptedRunError:
        raise
    except BaseException as error:
        observe(RunFailed(time.perf_counter() - began, f"{type(error).__name__}: {error}"))
        raise
