"""Seeded faults in small runs: one is planned from a seed, had, and held against what must hold.

Whatever happens, a run is gone on with until it is done. Then: its losses and weights are those of
the run in which nothing happened, to the bit; every sample was seen once; each death was told
within SOON_S; no process, descriptor, shared memory or unfinished file is left.
"""

from __future__ import annotations

import os
import random
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from campaign_graphs import GRAPHS
from fakes_faults import SUPERVISOR, Fault
from supervised import Outcome, run, supervise

from flowengine import Graph
from flowengine.checkpoint import newest_checkpoint, open_checkpoint, read_part

KINDS = ["kill", "supervisor", "cut", "disk full", "spill full", "nan", "poison"]
WEIGHTS = [9, 3, 4, 3, 2, 1, 1]
CALLS = 9_000
"""Calls of the engine's functions within which a killed worker of these graphs dies, if it does."""


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
        return run(GRAPHS[name](), Path(folder) / "run", resume=None, runtime="inline")


def plan(seed: int, folder: Path) -> tuple[str, str, list[Fault]]:
    """The graph, the kind of fault, and the faults."""
    draw = random.Random(seed)
    name = draw.choice(list(GRAPHS))
    workers = _labels(GRAPHS[name]())
    (kind,) = draw.choices(KINDS, WEIGHTS)
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
            _fault(folder, index, worker, "kill", draw.randint(1, CALLS))
            for index, worker in enumerate(draw.sample(workers, count))
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
        shm = _names_in_shm()
        outcome = _go_on_until_done(graph, faults, folder, verdict)
        verdict.faults = sum(fault.happened() is not None for fault in faults)
        verdict.wrong += _compare(outcome, references[graph], poisoned=_poisoned(kind, faults))
        if _names_in_shm() - shm:
            verdict.wrong.append(f"/dev/shm holds {_names_in_shm() - shm}")
    verdict.wall_s = time.monotonic() - began
    return verdict


def _names_in_shm() -> set[str]:
    """But for semaphores of multiprocessing, which the engine has none of and others come and go
    with."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}


def _poisoned(kind: str, faults: list[Fault]) -> int | None:
    return faults[0].at if kind == "poison" and faults[0].happened() is not None else None


def _go_on_until_done(name: str, faults: list[Fault], folder: Path, verdict: Verdict) -> Outcome:
    """The whole run, over as many supervisors as it needs."""
    behind: Path | None = None
    total = Outcome()
    for attempt in range(2 + len(faults)):
        run_dir = folder / f"run-{attempt}"
        part = supervise(name, faults, run_dir, behind)
        total.left_out = sorted({*total.left_out, *part.left_out})
        verdict.told_s += part.told_s
        verdict.wrong += part.left_behind
        if not part.error:
            verdict.wrong += [f"{path} is left" for path in _unfinished(run_dir)]
            total.losses = _losses_before(behind) + part.losses
            total.weights, total.seen = part.weights, part.seen or _seen_before(behind)
            return total
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


def _seen_before(checkpoint: Path | None) -> list[int]:
    """What a run that had nothing left to train need not see again."""
    if checkpoint is None:
        return []
    ids: list[int] = read_part(checkpoint, "seen").tensors["ids"].tolist()
    return ids


def _unfinished(run_dir: Path) -> list[Path]:
    return [*run_dir.glob("checkpoints/.*"), *run_dir.glob("stacks"), *run_dir.glob(".*.part")]


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
