"""The end of a step: when a stage replica may change its weights, and what it asks and tells first.

Rules.
- Version v of the weights is what v optimizer steps have made. Features of step s are computed with
  version max(0, s - staleness), exactly: which weights were used never depends on timing.
- Gradients of step s are applied to version s, once all of them are in: those of this replica,
  then, after the coordinator has heard of all replicas, those of the others.
- With clipping, no stage steps before the coordinator has the norm of all stages' gradients.
- In a gang every rank steps its own part of the weights. What is asked of a whole weight, its
  gradient's norm and its place in a checkpoint, all ranks work out together.
- The first replica keeps the stage's part of a checkpoint, behind the optimizer step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from flowengine.errors import RunError
from flowengine.runtime.saver import Saver
from flowengine.runtime.site import Site


class StepEnd(ABC):
    """Of one stage replica, trained or frozen; subclasses have its weights."""

    def __init__(self, site: Site, *, staleness: int) -> None:
        self.site = site
        self.spec = site.worker.stage
        self.trains = self.spec.trains
        self.staleness = staleness
        self.version = site.start.step if self.trains else 0
        self._finishing: int | None = None
        if self.trains:
            self._saver = Saver(site)

    @property
    def is_finishing(self) -> bool:
        """Whether a step's gradients are all in and its optimizer step is not done."""
        return self._finishing is not None

    def version_for(self, step: int, *, held_out: bool) -> int:
        """The version that this step's forward uses."""
        if not self.trains:
            return 0
        return step if held_out else max(0, step - self.staleness)

    def has_version(self, version: int) -> bool:
        """Whether these weights are there yet."""
        return not self.trains or version <= self.version

    def finish_step(self, step: int) -> None:
        """All gradients of `step` are in: adds them up over replicas, clips, and steps."""
        assert self.version == step, f"step {step} ends at version {self.version}"
        self._finishing = step
        self.gather(step)
        if self.spec.replicas > 1:
            self.site.notify(
                "reduce", step, self.spec.name, self.site.worker.replica, self.offer(step)
            )
        else:
            self._send_norms(step)

    def on_notice(self, subject: str, fields: list[Any]) -> None:
        """The coordinator's answers: every replica has offered its sum; the norm of everything."""
        step = fields[0]
        assert step == self._finishing, f"{subject} of step {step} while at {self._finishing}"
        if subject == "reduce":
            offers = [present for present, count in fields[1] for _ in range(count)]
            self.add(step, offers)
            self._send_norms(step)
        else:
            assert subject == "commit", f"unknown notice {subject}"
            self._commit(*fields)

    def end(self, *, finishing: bool) -> str:
        """Writes the weights, and the last checkpoint if there is to be one; the weights' path
        within the run directory."""
        if not self._keeps():
            return ""
        if self.trains:
            if self._saver.is_due_at_end(self.version, finishing=finishing):
                self.checkpoint()
            self._saver.close()
        return self.export()

    def close(self) -> None:
        """Returns when nothing is being written any more."""
        if self.trains:
            self._saver.close()

    def learning_rate(self) -> float:
        """The rate that the next optimizer step uses."""
        assert self.spec.optimizer is not None
        return self.spec.optimizer.lr * self.spec.optimizer.schedule.factor(self.version)

    def _keeps(self) -> bool:
        """Whether this worker helps to write what all replicas have: of a gang all ranks do."""
        return self.site.worker.replica == self.site.worker.rank

    def _send_norms(self, step: int) -> None:
        norms = self.norms()
        if not all(math.isfinite(norm) for norm in norms):
            raise RunError(
                f"{self.spec}: step {step} has a gradient that is not finite; the weights are "
                "those of the step before. Look at its samples and learning rate"
            )
        if self.site.graph.clip_norm is None:
            self._commit(step, None)
        elif self.site.worker.replica == 0:
            self.site.notify("norms", step, self.spec.name, norms)

    def _commit(self, step: int, norm: float | None) -> None:
        if norm is not None and not math.isfinite(norm):
            raise RunError(
                f"{self.spec}: step {step} has gradients whose norm over all stages is {norm}; the "
                "weights are those of the step before. Look at its samples and learning rate"
            )
        rate = self.learning_rate()
        self._saver.settle()
        self.step(norm, rate)
        self.version += 1
        self._finishing = None
        if self.staleness:
            self.keep()
        if self._keeps():
            self._saver.look()
            if self._saver.is_due(self.version):
                self.checkpoint()
        if self.site.worker.replica == 0:
            self.site.notify("stepped", step, self.spec.name, rate)

    # what subclasses do

    def checkpoint(self) -> None:
        """Begins to save what the next steps depend on."""
        part = self.part()
        self._saver.save(self.version, part if self.site.worker.rank == 0 else None)

    @abstractmethod
    def gather(self, step: int) -> None:
        """Brings this replica's gradients of `step` to the weights that are stepped."""

    @abstractmethod
    def offer(self, step: int) -> list[bool]:
        """Lays this replica's gradients out for the others; for which weights there are any."""

    @abstractmethod
    def add(self, step: int, offers: list[list[bool]]) -> None:
        """Adds up what all replicas have laid out: `offers[r]` is what replica r said of it."""

    @abstractmethod
    def norms(self) -> list[float]:
        """The norms of the gradients, one by one."""

    @abstractmethod
    def step(self, norm: float | None, rate: float) -> None:
        """The optimizer step; `norm` is that of all stages' gradients, None without clipping."""

    @abstractmethod
    def keep(self) -> None:
        """Keeps the weights as they are now, for the stale forwards to come."""

    @abstractmethod
    def part(self) -> Any:
        """All that the next steps depend on, a flowengine.checkpoint.Part."""

    @abstractmethod
    def export(self) -> str:
        """Writes the weights as they are at the end; their path within the run directory,
        empty where another rank of the gang writes them."""
