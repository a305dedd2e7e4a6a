"""The supervisor's side: when all parts of a checkpoint are written, it becomes one.

Rules.
- What an earlier run or incarnation left half written is removed before anybody writes.
- A checkpoint behind step s is whole when every part of it is on the disk and the ledger has the
  losses of all steps before s, which its manifest then holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flowengine.checkpoint.description import describe_graph, describe_machine
from flowengine.checkpoint.folder import Folder
from flowengine.checkpoint.manifest import Manifest
from flowengine.graph import Graph


class Publisher:
    """Makes checkpoints whole, and removes those that are older than `keep_last`.

    parts: the stages that write one. losses, dead_letters: give those known so far. plans: gives
    what the plans behind a step depend on.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        folder: Folder,
        parts: Sequence[str],
        keep_last: int,
        losses: Callable[[], list[float]],
        dead_letters: Callable[[], list[dict[str, Any]]] = list,
        plans: Callable[[int], dict[str, Any]] = lambda _: {},
    ) -> None:
        self._graph = graph
        self._folder = folder
        self._parts = list(parts)
        self._keep_last = keep_last
        self._losses = losses
        self._dead_letters = dead_letters
        self._plans = plans
        folder.sweep()

    def poll(self) -> list[tuple[int, Path]]:
        """Publishes what is complete; steps and directories of the new checkpoints.
        OutOfBudgetError where the disk is full."""
        published = []
        for step, parts in self._folder.find_parts().items():
            losses = self._losses()
            if parts.issuperset(self._parts) and len(losses) >= step:
                published.append((step, self._publish(step, losses[:step])))
        return published

    def _publish(self, step: int, losses: list[float]) -> Path:
        manifest = Manifest(
            graph=self._graph.name,
            step=step,
            description=describe_graph(self._graph),
            machine=describe_machine(),
            parts=self._parts,
            losses=losses,
            dead_letters=self._dead_letters(),
            plans=self._plans(step),
        )
        path = self._folder.publish(manifest)
        self._folder.keep_last(self._keep_last)
        return path
