"""When a stage writes its part of a checkpoint, and how."""

from __future__ import annotations

from dataclasses import asdict

from flowengine.api import Operator
from flowengine.checkpoint import Folder, Part, Publisher, partial_dir
from flowengine.runtime.coordinator import Coordinator
from flowengine.runtime.site import Site
from flowengine.runtime.topology import Topology, WorkerSpec


class Saver:
    """Of one stage replica."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._kept = site.graph.checkpoints
        self._writer = site.parts.writer(part_name(site.worker))
        self._saved = site.start.step

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is made after `step` training steps."""
        return self._kept is not None and bool(self._kept.every) and step % self._kept.every == 0

    def is_due_at_end(self, step: int, *, finishing: bool) -> bool:
        """Whether one is made after the last step, asked to finish or not."""
        return (self._kept is not None or finishing) and step > self._saved

    def save(self, step: int, part: Part | None) -> None:
        """Copies the part, and begins to write it; None where another rank of the gang does."""
        if part is not None:
            self._writer.write(partial_dir(self._site.run_dir, step), part)
        self._saved = step

    def settle(self) -> None:
        """Returns when the weights may change, see PartWriter.settle."""
        self._writer.settle()

    def look(self) -> None:
        """Raises what the writing so far has met, see PartWriter.wait."""
        self._writer.look()

    def close(self) -> None:
        """Returns when all is written; raises as `look` does."""
        try:
            self._writer.wait()
        finally:
            self._writer.close()


def make_publisher(topology: Topology, coordinator: Coordinator, *, folder: Folder) -> Publisher:
    """What makes this run's checkpoints whole; its ledger is the coordinator's."""
    kept = topology.graph.checkpoints
    return Publisher(
        topology.graph,
        folder=folder,
        parts=part_names(topology),
        keep_last=kept.keep_last if kept else 1,
        losses=lambda: coordinator.losses,
        dead_letters=lambda: [asdict(letter) for letter in coordinator.dead_letters],
        plans=coordinator.plans.behind,
    )


def part_name(worker: WorkerSpec) -> str:
    """The name of a worker's part: its stage's where all replicas have the same weights."""
    return worker.stage.name if worker.stage.trains else worker.label


def part_names(topology: Topology) -> list[str]:
    """The parts that make a checkpoint of this graph whole."""
    return [
        part_name(worker)
        for worker in topology.workers
        if (worker.stage.trains and worker.replica == 0) or has_state(worker.stage.what)
    ]


def has_state(what: object) -> bool:
    """Whether it is an operator that keeps something from step to step."""
    return isinstance(what, Operator) and type(what).state is not Operator.state
