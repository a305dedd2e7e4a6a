"""The weights of a stage replica: in the stage's dtype at work, in float32 where they are stepped.

Rules.
- In float32 and float64 there is one copy: what computes is what the optimizer steps on.
- In bfloat16 the module computes, and every parameter that trains has a *master* in float32,
  taken before the weights were rounded. Each pack's gradient is added to the master's, in float32;
  the optimizer steps on masters alone; the module gets them rounded after every step.
- Buffers that no checkpoint holds, such as rotary frequencies, are not rounded to a half dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flowengine.api import Trainable
from flowengine.graph.description import StageSpec
from flowengine.graph.dtype import DType, is_half, master_dtype
from flowengine.runtime.round import derive_seed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Weights:
    """module: in `dtype`. parameters: what the optimizer steps on, in the order of the module's."""

    def __init__(self, stage: StageSpec, *, seed: int, dtype: DType) -> None:
        self.module = _build(stage, seed=seed)
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        self._masters: dict[str, nn.Parameter] = {}
        if is_half(dtype):
            wide = getattr(torch, master_dtype(dtype))
            self._masters = {
                name: nn.Parameter(parameter.detach().to(wide, copy=True))
                for name, parameter in named
            }
        cast(self.module, dtype)
        self.parameters = list(self._masters.values()) or [p for _, p in named]

    @property
    def masters(self) -> dict[str, Tensor]:
        """The float32 masters by the parameters' names; empty where the module has them itself."""
        return {name: master.detach() for name, master in self._masters.items()}

    def spread(self, operator: Trainable[Any], mesh: DeviceMesh) -> None:
        """Spreads the module over a gang."""
        assert not self._masters
        operator.parallelize(self.module, mesh)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]

    def absorb(self, module: nn.Module) -> None:
        """Adds the gradients of `module`, which is this one or a kept copy of it, to the masters'
        and takes them from it."""
        if not self._masters:
            return
        theirs = [p for p in module.parameters() if p.requires_grad]
        for master, parameter in zip(self.parameters, theirs, strict=True):
            if parameter.grad is None:
                continue
            gradient, parameter.grad = parameter.grad, None
            if master.grad is None:
                master.grad = gradient.to(master.dtype)
            else:
                master.grad.add_(gradient)

    @torch.no_grad()
    def publish(self) -> None:
        """The module computes with the masters, rounded, from now on."""
        for name, master in self._masters.items():
            self.module.get_parameter(name).copy_(master)

    def widen(self) -> None:
        """Puts the masters themselves into the module, for good."""
        for name, master in self._masters.items():
            self.module.get_parameter(name).data = master.data


def build_module(stage: StageSpec, *, seed: int, dtype: DType) -> nn.Module:
    """The stage's module as every replica builds it: same seed, same weights, in `dtype`."""
    module = _build(stage, seed=seed)
    cast(module, dtype)
    return module


def cast(module: nn.Module, dtype: DType) -> None:
    """Parameters and buffers to `dtype`, in place."""
    exact = [
        (owner, name, buffer)
        for owner in module.modules()
        for name, buffer in owner.named_buffers(recurse=False)
        if is_half(dtype) and name in owner._non_persistent_buffers_set
    ]
    module.to(getattr(torch, dtype))
    for owner, name, buffer in exact:
        owner._buffers[name] = buffer


def _build(stage: StageSpec, *, seed: int) -> nn.Module:
    assert isinstance(stage.what, Trainable)
    torch.manual_seed(derive_seed(seed, stage.name, "weights"))
    module: nn.Module = stage.what.build()
    if not stage.trains:
        module.requires_grad_(False)
    return module
