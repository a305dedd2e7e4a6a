"""Weights at work: a module, its optimizer, and the gradients of its replicas in one sum.

Rules.
- What is done when is said by flowengine.runtime.step_end; here is what is done.
- With staleness, gradients were computed on a kept copy of an older version, and are moved over
  before the optimizer step.
- The optimizer steps on shards: the parameters themselves, or of a gang's this rank's part.
- Replicas add their gradients in the order of the replicas, each for itself and all alike, so that
  their weights stay equal to the bit.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file, save_model
from torch import Tensor, nn

from flowengine.api import Trainable
from flowengine.checkpoint import Part, gather_training, restore_training, whole
from flowengine.pool import Pool
from flowengine.runtime.shard import gradient_norms, hand_over_gradient, shard_of
from flowengine.runtime.site import Site
from flowengine.runtime.step_end import StepEnd
from flowengine.runtime.weights import Weights


class Trainer(StepEnd):
    """The module of a stage replica, trained or frozen."""

    def __init__(self, site: Site, *, staleness: int) -> None:
        super().__init__(site, staleness=staleness)
        assert isinstance(self.spec.what, Trainable)
        assert isinstance(site.pool, Pool)
        self._pool = site.pool
        self._operator: Trainable[Any] = self.spec.what
        dtype = site.graph.dtype_of(self.spec)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._weights = Weights(self.spec, seed=site.graph.seed, dtype=dtype)
        self.module = self._weights.module
        if site.mesh is not None:
            self._weights.spread(self._operator, site.mesh.mesh)
        self._parameters = self._weights.parameters
        self._kept: dict[int, nn.Module] = {}
        if self.trains:
            assert self.spec.optimizer is not None
            self._shards = [shard_of(parameter) for parameter in self._parameters]
            self._owners = dict(zip(self._shards, self._parameters, strict=True))
            self._optimizer = self.spec.optimizer.build(self._shards)
            if site.start.checkpoint is not None:
                part = site.parts.read(site.start.checkpoint, self.spec.name)
                self._kept = restore_training(
                    part, self.module, self._optimizer, self._weights.masters, self._owners
                )
            elif staleness:
                self.keep()

    def module_of(self, version: int) -> nn.Module | None:
        """The module with these weights; None while they are not there yet."""
        if not self.trains or (version == self.version and not self.staleness):
            return self.module
        if version == self.version or version in self._kept:
            return self._kept[version]
        assert version > self.version, f"version {version} is gone, at {self.version}"
        return None

    def absorb(self, module: nn.Module) -> None:
        """Takes in what a backward has left in the parameters of `module`."""
        self._weights.absorb(module)

    def gather(self, step: int) -> None:
        if not self.staleness or self._weights.masters:
            return
        stale = self._kept[max(0, step - self.staleness)]
        theirs = [p for p in stale.parameters() if p.requires_grad]
        for mine, other in zip(self._parameters, theirs, strict=True):
            mine.grad, other.grad = other.grad, None

    def keep(self) -> None:
        recycled = self._kept.pop(self.version - self.staleness - 1, None)
        if recycled is None:
            recycled = copy.deepcopy(self.module)
        with torch.no_grad():
            for mine, other in zip(
                self.module.state_dict().values(), recycled.state_dict().values(), strict=True
            ):
                other.copy_(mine)
        self._kept[self.version] = recycled

    def offer(self, step: int) -> list[bool]:
        present = [p.grad is not None for p in self._parameters]
        flat = [p.grad.reshape(-1) for p in self._parameters if p.grad is not None]
        if flat:
            offered = torch.cat(flat)
            area = self._pool.exchange(self.site.worker.index, step % 2, offered.nbytes)
            area.view(offered.dtype).copy_(offered)
        return present

    def add(self, step: int, offers: list[list[bool]]) -> None:
        """As in StepEnd; `offers[r]` tells for every parameter whether replica r has a gradient."""
        workers = self.site.topology.replicas_of(self.spec.name)
        total: list[Tensor | None] = [None] * len(self._parameters)
        for worker, present in zip(workers, offers, strict=True):
            for index, part in self._offered(worker.index, step, present):
                before = total[index]
                total[index] = part.clone() if before is None else before.add_(part)
        for parameter, gradient in zip(self._parameters, total, strict=True):
            parameter.grad = None if gradient is None else gradient.view_as(parameter)

    def norms(self) -> list[float]:
        return gradient_norms(self._parameters, self.site.mesh)

    def step(self, norm: float | None, rate: float) -> None:
        for parameter, shard in zip(self._parameters, self._shards, strict=True):
            hand_over_gradient(parameter, shard)
        with_gradient = [shard for shard in self._shards if shard.grad is not None]
        if norm is not None and self.site.graph.clip_norm is not None and with_gradient:
            total = torch.tensor(norm, dtype=with_gradient[0].dtype)
            nn.utils.clip_grads_with_norm_(with_gradient, self.site.graph.clip_norm, total)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._weights.publish()

    def part(self) -> Part:
        return gather_training(
            self.module, self._optimizer, self._kept, self._weights.masters, self._owners
        )

    def export(self) -> str:
        """As safetensors."""
        name = f"weights/{self.spec.name}.safetensors"
        path: Path = self.site.run_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._weights.widen()
        origin = self._operator.origin(self.module)
        if self.site.mesh is None:
            save_model(self.module, str(path), metadata=origin)
            return name
        weights = {key: whole(tensor) for key, tensor in self.module.state_dict().items()}
        if self.site.worker.rank:
            return ""
        save_file(weights, path, metadata=origin)
        return name

    def _offered(self, owner: int, step: int, present: list[bool]) -> list[tuple[int, Tensor]]:
        indices = [index for index, there in enumerate(present) if there]
        if not indices:
            return []
        sizes = [self._parameters[index].numel() for index in indices]
        dtype = self._parameters[0].dtype
        area = self._pool.exchange(owner, step % 2, sum(sizes) * dtype.itemsize)
        return list(zip(indices, torch.split(area.view(dtype), sizes), strict=True))
