"""A rank's part of the parameters that are spread over its gang, and of their gradients.

Optimizers work on these: an element's update depends on that element alone, so that it does not
matter which rank makes it. A parameter that is not spread is its own shard.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flowengine.checkpoint import is_spread, local_of
from flowengine.runtime.mesh import GangMesh


def shard_of(parameter: nn.Parameter) -> nn.Parameter:
    """The parameter itself; or of one that is spread this rank's part, in the same memory."""
    return nn.Parameter(local_of(parameter)) if is_spread(parameter) else parameter


def hand_over_gradient(parameter: nn.Parameter, shard: nn.Parameter) -> None:
    """Gives the shard its part of the parameter's gradient."""
    if shard is not parameter:
        shard.grad = None if parameter.grad is None else local_of(parameter.grad)
        parameter.grad = None


def gradient_norms(parameters: Sequence[nn.Parameter], mesh: GangMesh | None) -> list[float]:
    """The norm of each parameter's gradient, of those that have one. A collective of the gang."""
    found = [p for p in parameters if p.grad is not None]
    if mesh is None:
        return [float(torch.linalg.vector_norm(p.grad)) for p in found if p.grad is not None]
    if not found:
        return []
    squares = torch.stack([_square(parameter) for parameter in found])
    for dimension in mesh.dimensions:
        parts = torch.tensor([dimension in _spread_over(parameter) for parameter in found])
        summed = mesh.sum(squares * parts, dimension)
        squares = torch.where(parts, summed, squares)
    norms: list[float] = squares.sqrt().tolist()
    return norms


def _square(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    if is_spread(parameter) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
        parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore
    assert parameter.grad is not None
    norm: Tensor = torch.linalg.vector_norm(local_of(parameter.grad))
    return norm.double().square()


def _spread_over(parameter: nn.Parameter) -> set[str]:
    """The dimensions of the mesh over which the parameter is cut into parts."""
    if not is_spread(parameter):
        return set()
    names = parameter.device_mesh.mesh_dim_names  # type: ignore[attr-defined]
    placements = parameter.placements  # type: ignore[attr-defined]
    return {n for n, p in zip(names, placements, strict=True) if not p.is_replicate()}
