"""How a module's weights are spread over the ranks of a gang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle


def spread(module: nn.Module, mesh: DeviceMesh, tensor_plan: Mapping[str, ParallelStyle]) -> None:
    """Shares submodules over the mesh's "tensor" ranks by the plan, then shards all parameters over
    its "data" ranks; in place. Gradients are summed, not averaged: losses are sums."""
    from torch.distributed.tensor.parallel import parallelize_module

    if mesh["tensor"].size() > 1:
        parallelize_module(module, mesh["tensor"], dict(tensor_plan))
    if mesh["data"].size() > 1:
        _shard(module, mesh["data"])


def _shard(module: nn.Module, mesh: DeviceMesh) -> None:
    from torch.distributed.fsdp import FSDPModule, fully_shard

    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    for part in [*(item for each in lists for item in each), module]:
        if not isinstance(part, FSDPModule):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
