"""Tensors that are spread over the ranks of a gang (torch's DTensor), whole and in parts.

`whole`, `whole_like` and nothing else here are collectives: all ranks call them, in one order.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_spread(tensor: Tensor) -> bool:
    """Whether this process has a part of the tensor, and its gang the others."""
    from torch.distributed.tensor import DTensor  # torch's optimizers import it in any case.

    return isinstance(tensor, DTensor)


def local_of(tensor: Tensor) -> Tensor:
    """The part that this process has, in the same memory; the tensor itself if it is not spread."""
    if not is_spread(tensor):
        return tensor
    found: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return found


def whole(tensor: Tensor) -> Tensor:
    """All of it, in every rank; the tensor itself if it is not spread."""
    if not is_spread(tensor):
        return tensor
    found: Tensor = tensor.detach().full_tensor()  # type: ignore[attr-defined]
    return found


def whole_like(part: Tensor, like: Tensor) -> Tensor:
    """All of a tensor of which every rank has the part that it has of `like`."""
    from torch.distributed.tensor import DTensor

    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=torch.Size(like.shape),
        stride=like.stride(),
    ).full_tensor()


def spread_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, the same in every rank, spread as `like` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
