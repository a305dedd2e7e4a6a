"""Runs of the campaign's graphs, each with a supervisor of its own, which may be killed."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from campaign_graphs import GRAPHS
from fakes_faults import SUPERVISOR, Fault, arm, plant

from flowengine import Graph, check
from flowengine.errors import FlowError
from flowengine.nursery import open_nursery
from flowengine.runtime import execute
from flowengine.runtime.events import Event, LeftOut, Reported, Restarted, RunDone, Status, StepDone
from flowengine.runtime.start import BEGINNING, start_behind

SOON_S = 2.0
PATIENCE_S = 60.0
MAX_RESTARTS = 8


@dataclass
class Outcome:
    """One part of a run, from a start to an end."""

    losses: list[float] = field(default_factory=list)
    weights: dict[str, str] = field(default_factory=dict)
    seen: list[int] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    restarts: int = 0
    told_s: list[float] = field(default_factory=list)
    error: str = ""
    pids: set[int] = field(default_factory=set)
    left_behind: list[str] = field(default_factory=list)


def supervise(name: str, faults: list[Fault], run_dir: Path, behind: Path | None) -> Outcome:
    """One supervisor's part, in a process of its own, which may be killed."""
    context = open_nursery()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_supervisor,
        args=(name, faults, run_dir, behind, theirs, forkserver._forkserver._forkserver_address),  # type: ignore[attr-defined]
        name=SUPERVISOR,
    )
    process.start()
    theirs.close()
    outcome = Outcome()
    pids: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not isinstance(message := _receive(ours, deadline), Outcome):
            pids |= message
        outcome = message
    except EOFError:
        outcome.error = "the supervisor was killed"
    except TimeoutError:
        outcome.error = f"it hangs, after {PATIENCE_S:.0f} s"
        process.kill()
    process.join()
    process.close()
    ours.close()
    killed = [f.happened() for f in faults if f.process == SUPERVISOR]
    survivors = _wait_for(outcome.pids | pids, began=max([t for t in killed if t], default=None))
    outcome.left_behind += [f"worker {pid} is left" for pid in survivors]
    return outcome


def _receive(connection: Connection, deadline: float) -> Any:
    if not connection.poll(max(0.0, deadline - time.monotonic())):
        raise TimeoutError
    return connection.recv()


def _wait_for(pids: set[int], *, began: float | None) -> set[int]:
    """Those that live on SOON_S after the end."""
    deadline = (began if began is not None else time.monotonic()) + SOON_S
    while (left := {pid for pid in pids if _lives(pid)}) and time.monotonic() < deadline:
        os.sched_yield()
    return left


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _supervisor(
    name: str,
    faults: list[Fault],
    run_dir: Path,
    behind: Path | None,
    tell: Connection,
    nursery: str,
) -> None:
    torch.set_num_threads(1)
    _share_nursery(nursery)
    graph = GRAPHS[name]()
    plant(graph, faults)
    for fault in faults:
        if fault.process == SUPERVISOR:
            arm(fault)
    tell.send(run(graph, run_dir, resume=behind, runtime="local", faults=faults, tell=tell))


def _share_nursery(address: str) -> None:
    """Has this process's workers come from the forkserver that it came from itself, which has
    imported all of it: a supervisor's own would take seconds to."""
    shared: Any = forkserver._forkserver
    forkserver.ensure_running = shared.ensure_running = lambda: None
    shared._forkserver_address = address


def run(
    graph: Graph,
    run_dir: Path,
    *,
    resume: Path | None,
    runtime: Any,
    faults: list[Fault] | None = None,
    tell: Connection | None = None,
) -> Outcome:
    check(graph)
    outcome = Outcome()
    weights: dict[str, str] = {}
    before = _held()

    def observe(event: Event) -> None:
        if isinstance(event, StepDone):
            outcome.losses.append(event.loss)
        elif isinstance(event, Reported) and event.name == "seen":
            outcome.seen = list(event.value)
        elif isinstance(event, LeftOut):
            outcome.left_out.append(event.sample)
        elif isinstance(event, Restarted):
            outcome.restarts += 1
            del outcome.losses[event.step - first :]
            outcome.told_s.append(_since_last(faults or []))
        elif isinstance(event, RunDone):
            weights.update(event.weights)
        elif isinstance(event, Status) and tell is not None:
            tell.send({stage.pid for stage in event.stages if stage.pid} - {os.getpid()})

    start = start_behind(graph, resume) if resume is not None else BEGINNING
    first = start.step
    try:
        execute(
            graph,
            runtime=runtime,
            run_dir=run_dir,
            observe=observe,
            start=start,
            max_restarts=MAX_RESTARTS,
        )
    except FlowError as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.weights = {stage: _digest(run_dir / file) for stage, file in weights.items()}
    if _held() != before:
        outcome.left_behind.append(f"descriptors: {before} before, {_held()} after")
    if multiprocessing.active_children():
        outcome.left_behind.append(f"processes: {multiprocessing.active_children()}")
    return outcome


def _since_last(faults: list[Fault]) -> float:
    times = [fault.happened() for fault in faults]
    return time.monotonic() - max(at for at in times if at is not None)


def _held() -> dict[str, int]:
    """Open descriptors of the kinds that a run makes."""
    found = {"memfd": 0, "socket": 0}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            link = os.readlink(entry)
        except FileNotFoundError:
            continue
        for kind in found:
            found[kind] += kind in link
    return found


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
