"""Weights and what their optimizer remembers, as a part of a checkpoint and back.

module/<name>               parameters and buffers
optimizer/<index>/<name>    the optimizer's state of parameter <index>
master/<name>               weights in float32, of a module that computes in a half dtype
kept/<version>/<name>       older weights that the next steps' forwards still use

All tensors are whole, also those of a gang, so that a checkpoint does not depend on how a stage was
placed. `owners` says for each parameter of the optimizer, a shard, which of the module's it is of.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flowengine.checkpoint.part import Part
from flowengine.checkpoint.spread import local_of, spread_like, whole, whole_like


def gather_training(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    kept: Mapping[int, nn.Module],
    masters: Mapping[str, Tensor],
    owners: Mapping[nn.Parameter, nn.Parameter],
) -> Part:
    """All that the next steps depend on; the tensors are the living ones, not copies, where they
    are not spread. A collective of the gang."""
    weights = {name: whole(tensor) for name, tensor in module.state_dict().items()}
    tensors = _prefixed(weights, "module") | _prefixed(masters, "master")
    shards = _shards(optimizer)
    values: dict[str, Any] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            name = f"optimizer/{index}/{key}"
            if isinstance(value, Tensor):
                shard = shards[index]
                is_part = value.ndim > 0 and value.shape == shard.shape
                tensors[name] = whole_like(value, owners[shard]) if is_part else value
            else:
                values[name] = value
    for version, older in kept.items():
        tensors |= _prefixed(older.state_dict(), f"kept/{version}")
    stepped = {shard.data_ptr() for shard in shards}
    lasting = [n for n, t in weights.items() if t.data_ptr() in stepped]
    return Part(
        tensors,
        values,
        lasting=frozenset(f"module/{name}" for name in lasting)
        | {name for name in tensors if name.startswith("optimizer/")},
    )


def restore_training(
    part: Part,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    masters: Mapping[str, Tensor],
    owners: Mapping[nn.Parameter, nn.Parameter],
) -> dict[int, nn.Module]:
    """Puts it all back, in place; the older weights by version.

    The optimizer's settings are those it was built with.
    """
    mine = module.state_dict()
    saved = _below(part.tensors, "module")
    module.load_state_dict(
        {name: spread_like(saved[name], mine.get(name, saved[name])) for name in saved}
    )
    shards = _shards(optimizer)
    for name, master in masters.items():
        master.copy_(part.tensors[f"master/{name}"])
    state: dict[int, dict[str, Any]] = defaultdict(dict)
    for name, value in _below({**part.tensors, **part.values}, "optimizer").items():
        index, _, key = name.partition("/")
        owner = owners[shards[int(index)]]
        if isinstance(value, Tensor) and value.ndim > 0 and value.shape == owner.shape:
            value = local_of(spread_like(value, owner))
        state[int(index)][key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": dict(state), "param_groups": groups})
    kept: dict[int, nn.Module] = {}
    for version in {int(name.split("/")[0]) for name in _below(part.tensors, "kept")}:
        kept[version] = copy.deepcopy(module)
        kept[version].load_state_dict(_below(part.tensors, f"kept/{version}"))
    return kept


def _shards(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The optimizer's parameters in the order of its state."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _prefixed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _below(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The values whose names begin with the prefix, named by the rest."""
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}
