"""Stalls planted from a seed in a small run: each must be given up in time, with its root cause."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign_graphs import Seen
from fakes import MixedSamples, small_graph

from flowengine import Graph, check
from flowengine.errors import StallError
from flowengine.graph import Stream
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker
from flowengine.operators.vision import VisionEncoder
from flowengine.runtime import execute
from flowengine.runtime.watch import STUCK

STALL_S = 0.3
SPARE_S = 5.0
"""For starting the workers, and for taking stacks."""

STUCK_IN: dict[str, list[tuple[type, str]]] = {
    "source": [(MixedSamples, "read"), (MixedSamples, "lengths"), (CostPacker, "plan")],
    "encoder": [(VisionEncoder, "batch"), (VisionEncoder, "forward")],
    "model": [(LanguageModel, "loss")],
    "seen": [(Seen, "process"), (Seen, "flush")],
}
"""By the worker that never comes back: what keeps it. Packs are planned at the source."""

STOPPED = ["source", "encoder", "packer", "model", "seen"]


@dataclass(frozen=True)
class Snag:
    """process: the worker's label. method: the place in STUCK_IN, or None: the process is stopped
    by SIGSTOP at the `at`-th call of its stage's `advance`."""

    process: str
    method: int | None
    at: int


class _Armed:
    def __init__(self, snag: Snag) -> None:
        self.snag = snag

    def __reduce__(self) -> tuple[Any, ...]:
        return _arm_here, (self.snag,)


def _arm_here(snag: Snag) -> _Armed:
    if snag.process == multiprocessing.current_process().name:
        _arm(snag)
    return _Armed(snag)


def _arm(snag: Snag) -> None:
    from flowengine.runtime.stage import Stage

    owner: type = Stage
    name = "advance"
    if snag.method is not None:
        owner, name = STUCK_IN[snag.process][snag.method]
    function, calls = getattr(owner, name), 0

    def stick(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == snag.at:
            if snag.method is None:
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                threading.Event().wait()
        return function(*given, **named)

    setattr(owner, name, stick)


def plan(seed: int) -> Snag:
    """What gets stuck, and when."""
    draw = random.Random(f"stall {seed}")
    if draw.random() < 0.3:
        return Snag(draw.choice(STOPPED), None, draw.randint(3, 12))
    process = draw.choice(list(STUCK_IN))
    method = draw.randrange(len(STUCK_IN[process]))
    calls = 4 if STUCK_IN[process][method][1] in ("plan", "flush") else 20
    return Snag(process, method, draw.randint(1, calls))


def stalled_graph(snag: Snag) -> Graph:
    graph = small_graph(steps=8)
    graph.add(Seen(), Stream(graph, "source"), name="seen")
    graph.armed = _Armed(snag)  # type: ignore[attr-defined]
    return graph


def judge(seed: int) -> tuple[Snag, float, list[str]]:
    """The snag, the seconds until the run was given up, and what did not hold."""
    snag = plan(seed)
    graph = stalled_graph(snag)
    check(graph)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            execute(
                graph,
                runtime="local",
                run_dir=Path(folder) / "run",
                observe=lambda _: None,
                stall_s=STALL_S,
            )
        except StallError as error:
            told = str(error)
        else:
            return snag, 0.0, ["the run was done, and nothing got stuck"]
    took = time.monotonic() - began
    wrong = []
    if not re.match(rf"everybody waits for {snag.process}\[0\]:\n", told):
        wrong.append(f"named another root cause: {told}")
    if took > STUCK * STALL_S + SPARE_S:
        wrong.append(f"was given up after {took:.1f} s")
    return snag, took, wrong
