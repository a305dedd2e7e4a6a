"""Watches a run from its supervisor, and gives it up when nothing moves any more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from flowengine.errors import StallError
from flowengine.runtime.events import Status
from flowengine.runtime.stacks import take_stacks
from flowengine.runtime.stall import describe_stall, find_dependencies, look_closer
from flowengine.runtime.topology import Topology

STUCK = 10
"""Stages that are at work may take this many times as long as those that wait."""


class StallWatch:
    """Of one run; it moves while messages come or stages change their states."""

    def __init__(self, topology: Topology, *, run_dir: Path, stall_s: float) -> None:
        self._topology = topology
        self._run_dir = run_dir
        self._stall_s = stall_s
        self._marks: list[tuple[str, float]] = []
        self._moved_s = time.perf_counter()

    def heard(self) -> None:
        """A message came."""
        self._moved_s = time.perf_counter()

    def look(self, status: Status, *, pids: Mapping[int, int]) -> None:
        """StallError if nobody has been at work for stall_s, or all have been at the same work
        for STUCK times as long. pids: the processes
        by worker, of those that are on this machine."""
        now = time.perf_counter()
        marks: list[tuple[str, float]] = [(s.state, s.since_s) for s in status.stages]
        if marks != self._marks:
            self._marks, self._moved_s = marks, now
        at_work = any(stage.state in ("busy", "starting") for stage in status.stages)
        if now - self._moved_s > self._stall_s * (STUCK if at_work else 1):
            raise StallError(self._explain(status, pids))

    def _explain(self, status: Status, pids: Mapping[int, int]) -> str:
        """The text, which a file in the run directory holds as well, with the workers' stacks."""
        known = find_dependencies(self._topology.graph)
        text = describe_stall(look_closer(status, known), known)
        named = {w.label: pids[w.index] for w in self._topology.workers if w.index in pids}
        stacks = take_stacks(self._run_dir, named)
        told = [f"{label}:\n{stack}" for label, stack in stacks.items()]
        path = self._run_dir / "stall.txt"
        path.write_text("\n\n".join([text, *told]) + "\n", encoding="utf-8")
        return f"{text}\nthe stacks of all workers are in {path}"
