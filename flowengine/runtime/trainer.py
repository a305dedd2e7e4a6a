"""Weights at work: a module, its optimizer, and what its replicas owe each other at a step's end.

Rules.
- Version v of the weights is what v optimizer steps have made. Features of step s are computed with
  version max(0, s - staleness), exactly: which weights were used never depends on timing.
- Gradients of step s are applied to version s, once all of them are in. With staleness, they
  were computed on a kept copy of an older version, and are moved over before the optimizer step.
- Replicas add their gradients in the order of the replicas, each for itself and all alike, so that
  their weights stay equal to the bit.
- With clipping, no stage steps before the coordinator has the norm of all stages' gradients.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from flowengine.api import Trainable
from flowengine.checkpoint import gather_training, read_part, restore_training
from flowengine.errors import RunError
from flowengine.runtime.saver import Saver
from flowengine.runtime.site import Site
from flowengine.runtime.weights import Weights


class Trainer:
    """The module of a stage replica, trained or frozen."""

    def __init__(self, site: Site, *, staleness: int) -> None:
        self.site = site
        self.spec = site.worker.stage
        assert isinstance(self.spec.what, Trainable)
        self._operator: Trainable[Any] = self.spec.what
        self.trains = self.spec.trains
        self.version = site.start.step if self.trains else 0
        self.dtype: torch.dtype = getattr(torch, site.graph.dtype_of(self.spec))
        self._weights = Weights(
            self.spec, seed=site.graph.seed, dtype=site.graph.dtype_of(self.spec)
        )
        self.module = self._weights.module
        self._staleness = staleness
        self._parameters = self._weights.parameters
        self._kept: dict[int, nn.Module] = {}
        self._finishing: int | None = None
        if self.trains:
            assert self.spec.optimizer is not None
            self._optimizer = self.spec.optimizer.build(self._parameters)
            self._saver = Saver(site)
            if site.start.checkpoint is not None:
                part = read_part(site.start.checkpoint, self.spec.name)
                self._kept = restore_training(
                    part, self.module, self._optimizer, self._weights.masters
                )
            elif staleness:
                self._keep()

    @property
    def is_finishing(self) -> bool:
        """Whether a step's gradients are all in and its optimizer step is not done."""
        return self._finishing is not None

    def version_for(self, step: int, *, held_out: bool) -> int:
        """The version that this step's forward uses."""
        if not self.trains:
            return 0
        return step if held_out else max(0, step - self._staleness)

    def module_of(self, version: int) -> nn.Module | None:
        """The module with these weights; None while they are not there yet."""
        if not self.trains or (version == self.version and not self._staleness):
            return self.module
        if version == self.version or version in self._kept:
            return self._kept[version]
        assert version > self.version, f"version {version} is gone, at {self.version}"
        return None

    def absorb(self, module: nn.Module) -> None:
        """Takes in what a backward has left in the parameters of `module`."""
        self._weights.absorb(module)

    def finish_step(self, step: int) -> None:
        """All gradients of `step` are in: adds them up over replicas, clips, and steps."""
        assert self.version == step, f"step {step} ends at version {self.version}"
        self._finishing = step
        self._move_gradients(step)
        if self.spec.replicas > 1:
            self._offer_gradients(step)
        else:
            self._send_norms(step)

    def on_notice(self, subject: str, fields: list[Any]) -> None:
        """The coordinator's answers: every replica has offered its sum; the norm of everything."""
        if subject == "reduce":
            self._add_gradients(*fields)
        elif subject == "commit":
            self._commit(*fields)
        else:
            raise AssertionError(f"unknown notice {subject}")

    def learning_rate(self) -> float:
        """The rate that the next optimizer step uses."""
        assert self.spec.optimizer is not None
        return self.spec.optimizer.lr * self.spec.optimizer.schedule.factor(self.version)

    def end(self, *, finishing: bool) -> str:
        """Writes the weights as safetensors, and the last checkpoint if there is to be one; the
        weights' path within the run directory."""
        if self.site.worker.replica:
            return ""
        if self.trains:
            if self._saver.is_due_at_end(self.version, finishing=finishing):
                self._checkpoint()
            self._saver.close()
        name = f"weights/{self.spec.name}.safetensors"
        path: Path = self.site.run_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._weights.widen()
        save_model(self.module, str(path), metadata=self._operator.origin(self.module))
        return name

    def close(self) -> None:
        """Returns when nothing is being written any more."""
        if self.trains:
            self._saver.close()

    def _move_gradients(self, step: int) -> None:
        if not self._staleness or self._weights.masters:
            return
        stale = self._kept[max(0, step - self._staleness)]
        theirs = [p for p in stale.parameters() if p.requires_grad]
        for mine, other in zip(self._parameters, theirs, strict=True):
            mine.grad, other.grad = other.grad, None

    def _keep(self) -> None:
        recycled = self._kept.pop(self.version - self._staleness - 1, None)
        if recycled is None:
            recycled = copy.deepcopy(self.module)
        with torch.no_grad():
            for mine, other in zip(
                self.module.state_dict().values(), recycled.state_dict().values(), strict=True
            ):
                other.copy_(mine)
        self._kept[self.version] = recycled

    def _offer_gradients(self, step: int) -> None:
        present = [p.grad is not None for p in self._parameters]
        flat = [p.grad.reshape(-1) for p in self._parameters if p.grad is not None]
        if flat:
            offered = torch.cat(flat)
            area = self.site.pool.exchange(self.site.worker.index, step % 2, offered.nbytes)
            area.view(offered.dtype).copy_(offered)
        self.site.notify("reduce", step, self.spec.name, self.site.worker.replica, present)

    def _add_gradients(self, step: int, offers: list[list[bool]]) -> None:
        """`offers[r]` tells for every parameter whether replica r has a gradient for it."""
        workers = self.site.topology.replicas_of(self.spec.name)
        total: list[Tensor | None] = [None] * len(self._parameters)
        for worker, present in zip(workers, offers, strict=True):
            for index, part in self._offered(worker.index, step, present):
                before = total[index]
                total[index] = part.clone() if before is None else before.add_(part)
        for parameter, gradient in zip(self._parameters, total, strict=True):
            parameter.grad = None if gradient is None else gradient.view_as(parameter)
        self._send_norms(step)

    def _offered(self, owner: int, step: int, present: list[bool]) -> list[tuple[int, Tensor]]:
        indices = [index for index, there in enumerate(present) if there]
        if not indices:
            return []
        sizes = [self._parameters[index].numel() for index in indices]
        dtype = self._parameters[0].dtype
        area = self.site.pool.exchange(owner, step % 2, sum(sizes) * dtype.itemsize)
        return list(zip(indices, torch.split(area.view(dtype), sizes), strict=True))

    def _send_norms(self, step: int) -> None:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norms = [float(torch.linalg.vector_norm(gradient)) for gradient in gradients]
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
        assert step == self._finishing, f"commit of step {step} while at {self._finishing}"
        if norm is not None and not math.isfinite(norm):
            raise RunError(
                f"{self.spec}: step {step} has gradients whose norm over all stages is {norm}; the "
                "weights are those of the step before. Look at its samples and learning rate"
            )
        with_gradient = [p for p in self._parameters if p.grad is not None]
        if norm is not None and self.site.graph.clip_norm is not None and with_gradient:
            total = torch.tensor(norm, dtype=with_gradient[0].dtype)
            nn.utils.clip_grads_with_norm_(with_gradient, self.site.graph.clip_norm, total)
        rate = self.learning_rate()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._weights.publish()
        self.version += 1
        self._finishing = None
        if self._staleness:
            self._keep()
        if self.site.worker.replica == 0:
            self._saver.look()
            if self._saver.is_due(self.version):
                self._checkpoint()
            self.site.notify("stepped", step, self.spec.name, rate)

    def _checkpoint(self) -> None:
        part = gather_training(self.module, self._optimizer, self._kept, self._weights.masters)
        self._saver.save(self.version, part)
