"""Seeded faults in small runs: one is planned from a seed, had, and held against what must hold.

Whatever happens, a run is gone on with until it is done. Then: its losses and weights are those of
the run in which nothing happened, to the bit; every sample was seen once; each death was told
within SOON_S; no process, descriptor, shared memory or unfinished file is left.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from fakes import VOCABULARY, small_graph
from fakes_faults import SUPERVISOR, Fault, arm, plant
from fakes_faulty import faulty_graph
from fakes_slow import SlowModel

from flowengine import Graph, check
from flowengine.api import Context, Operator, Sample
from flowengine.checkpoint import newest_checkpoint, open_checkpoint
from flowengine.errors import FlowError
from flowengine.graph import Stream
from flowengine.nursery import open_nursery
from flowengine.operators.packing import CostPacker
from flowengine.runtime import execute
from flowengine.runtime.events import Event, LeftOut, Reported, Restarted, RunDone, Status, StepDone
from flowengine.runtime.start import BEGINNING, start_behind

SOON_S = 2.0
PATIENCE_S = 60.0
MAX_RESTARTS = 8


class Seen(Operator):
    """Remembers which samples it has seen, over the whole training, and tells at every step."""

    def open(self, context: Context) -> None:
        self._report = context.report
        self._ids: list[int] = []

    def process(self, sample: Sample) -> None:
        self._ids.append(int(sample.note["index"]))

    def flush(self) -> None:
        self._report("seen", self._ids)

    def state(self) -> Mapping[str, Any]:
        return {"ids": torch.tensor(self._ids)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._ids = state["ids"].tolist()


def _watched(graph: Graph, *, every: int) -> Graph:
    graph.add(Seen(), Stream(graph, "source"), name="seen")
    graph.checkpoint(every=every, keep_last=2)
    return graph


def _spilling() -> Graph:
    model = SlowModel(vocabulary=VOCABULARY, width=12, depth=1, heads=2, groups=1, rounds=6)
    graph = faulty_graph(
        model=model,
        packer=CostPacker(max_tokens=32),
        samples=40,
        steps=3,
        capacity="48 KiB",
    )
    graph.evaluations.clear()
    graph.joins[0].disk = 2**20
    return _watched(graph, every=1)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "training": lambda: _watched(small_graph(steps=6), every=2),
    "replicas": lambda: _watched(small_graph(steps=5, replicas=2, model_replicas=2), every=1),
    "staleness 1": lambda: _watched(small_graph(steps=5, staleness=1), every=2),
    "recompute, no clipping": lambda: _watched(
        small_graph(steps=5, activations="recompute", clip_norm=None), every=3
    ),
    "spilling": _spilling,
}
CALLS = 9_000
"""Calls of the engine's functions within which a killed worker of these graphs dies, if it does."""


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


@dataclass
class Verdict:
    """What became of one seed. faults: how many came. wrong: what did not hold."""

    seed: int
    graph: str
    kind: str
    faults: int = 0
    told_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


def reference(name: str) -> Outcome:
    """The run of this graph in which nothing happens."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(GRAPHS[name](), Path(folder) / "run", resume=None, runtime="inline")


def plan(seed: int, folder: Path) -> tuple[str, str, list[Fault]]:
    """The graph, the kind of fault, and the faults."""
    draw = random.Random(seed)
    name = draw.choice(list(GRAPHS))
    workers = _labels(GRAPHS[name]())
    kinds = ["kill"] * 9 + ["supervisor"] * 3 + ["cut"] * 4 + ["disk full"] * 3 + ["nan", "poison"]
    kind = draw.choice(kinds + ["spill full"] * 2)
    if kind == "spill full":
        name = "spilling"
        return name, kind, [_fault(folder, 0, "encoder", kind, draw.randint(1, 4))]
    if kind == "nan":
        return name, kind, [_fault(folder, 0, _model(workers), kind, draw.randint(1, 6))]
    if kind == "poison":
        return name, kind, [_fault(folder, 0, "source", kind, draw.randrange(40))]
    if kind in ("cut", "disk full"):
        place = draw.choice(["tensors of a part", "index of a part", "manifest", "rename"])
        if place == "rename" and kind == "disk full":
            place = "manifest"
        process = SUPERVISOR if place in ("manifest", "rename") else draw.choice(_savers(workers))
        how = draw.choice(["kill before", "kill after"]) if kind == "cut" else kind
        return name, kind, [_fault(folder, 0, process, how, draw.randint(1, 2), place)]
    if kind == "supervisor":
        return name, kind, [_fault(folder, 0, SUPERVISOR, "kill", draw.randint(1, CALLS // 3))]
    count = draw.randint(2, 4)
    return (
        name,
        kind,
        [
            _fault(folder, index, draw.choice(workers), "kill", draw.randint(1, CALLS))
            for index in range(count)
        ],
    )


def _fault(folder: Path, index: int, process: str, kind: str, at: int, place: str = "") -> Fault:
    return Fault(process, kind, at, str(folder / f"mark-{index}"), place)


def _labels(graph: Graph) -> list[str]:
    return [
        f"{stage.name}[{replica}]" if stage.replicas > 1 else stage.name
        for stage in graph.stages
        for replica in range(stage.replicas)
    ]


def _model(workers: list[str]) -> str:
    return next(label for label in workers if label.startswith("model"))


def _savers(workers: list[str]) -> list[str]:
    return ["seen", _model(workers), next(w for w in workers if w.startswith("encoder"))]


def judge(seed: int, references: Mapping[str, Outcome]) -> Verdict:
    """Has the faults of this seed, and says what did not hold."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph, kind, faults = plan(seed, folder)
        verdict = Verdict(seed, graph, kind)
        shm = set(os.listdir("/dev/shm"))
        outcome = _go_on_until_done(graph, faults, folder, verdict)
        verdict.faults = sum(fault.happened() is not None for fault in faults)
        verdict.wrong += _compare(outcome, references[graph], poisoned=_poisoned(kind, faults))
        if set(os.listdir("/dev/shm")) != shm:
            verdict.wrong.append(f"/dev/shm holds {set(os.listdir('/dev/shm')) - shm}")
    verdict.wall_s = time.monotonic() - began
    return verdict


def _poisoned(kind: str, faults: list[Fault]) -> int | None:
    return faults[0].at if kind == "poison" and faults[0].happened() is not None else None


def _go_on_until_done(name: str, faults: list[Fault], folder: Path, verdict: Verdict) -> Outcome:
    """The whole run, over as many supervisors as it needs."""
    behind: Path | None = None
    total = Outcome()
    for attempt in range(2 + len(faults)):
        run_dir = folder / f"run-{attempt}"
        part = _supervise(name, faults, run_dir, behind)
        total.left_out = sorted({*total.left_out, *part.left_out})
        verdict.told_s += part.told_s
        verdict.wrong += part.left_behind
        if not part.error:
            verdict.wrong += [f"{path} is left" for path in _unfinished(run_dir)]
            total.losses = _losses_before(behind) + part.losses
            total.weights = part.weights
            total.seen = part.seen or total.seen
            return total
        total.seen = part.seen or total.seen
        if not _is_expected(part.error, verdict.kind):
            verdict.wrong.append(f"ended with {part.error}")
        behind = newest_checkpoint(run_dir) or behind
    verdict.wrong.append("was never done")
    return total


def _is_expected(error: str, kind: str) -> bool:
    wanted = {
        "supervisor": "the supervisor was killed",
        "cut": "the supervisor was killed",
        "disk full": r"OutOfBudgetError: .*the disk is full",
        "nan": r"StageError: stage 'encoder.*: step \d+ has a gradient that is not finite",
    }
    return kind in wanted and re.match(wanted[kind], error, re.DOTALL) is not None


def _losses_before(checkpoint: Path | None) -> list[float]:
    return open_checkpoint(checkpoint).losses if checkpoint is not None else []


def _unfinished(run_dir: Path) -> list[Path]:
    return [*run_dir.glob("checkpoints/.*"), *run_dir.glob("stacks"), *run_dir.glob(".*.part")]


def _supervise(name: str, faults: list[Fault], run_dir: Path, behind: Path | None) -> Outcome:
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
    tell.send(_run(graph, run_dir, resume=behind, runtime="local", faults=faults, tell=tell))


def _share_nursery(address: str) -> None:
    """Has this process's workers come from the forkserver that it came from itself, which has
    imported all of it: a supervisor's own would take seconds to."""
    shared: Any = forkserver._forkserver  # type: ignore[attr-defined]
    forkserver.ensure_running = shared.ensure_running = lambda: None
    shared._forkserver_address = address


def _run(
    graph: Graph,
    run_dir: Path,
    *,
    resume: Path | None,
    runtime: Any,
    faults: list[Fault] | None = None,
    tell: Connection | None = None,
) -> Outcome:
    check(graph)
    outcome, weights = Outcome(), {}
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
    from hashlib import sha256

    return sha256(path.read_bytes()).hexdigest()


def _compare(outcome: Outcome, wanted: Outcome, *, poisoned: int | None) -> list[str]:
    """What differs from the run in which nothing happened."""
    wrong = []
    expected = [] if poisoned is None else [poisoned]
    if outcome.left_out != expected:
        wrong.append(f"left out {outcome.left_out}, expected {expected}")
    doubled = len(outcome.seen) - len(set(outcome.seen))
    lost = set(wanted.seen) - set(outcome.seen) - set(expected)
    if doubled or lost:
        wrong.append(f"{doubled} samples doubled, {len(lost)} lost")
    if len(outcome.losses) != len(wanted.losses):
        wrong.append(f"{len(outcome.losses)} steps, expected {len(wanted.losses)}")
    if poisoned is None and outcome.losses != wanted.losses:
        wrong.append("the losses differ")
    if poisoned is None and outcome.weights != wanted.weights:
        wrong.append("the weights differ")
    return wrong
