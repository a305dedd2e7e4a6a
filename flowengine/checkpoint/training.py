"""Weights and what their optimizer remembers, as a part of a checkpoint and back.

module/<name>               parameters and buffers
optimizer/<index>/<name>    the optimizer's state of parameter <index>
master/<name>               weights in float32, of a module that computes in a half dtype
kept/<version>/<name>       older weights that the next steps' forwards still use
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flowengine.checkpoint.part import Part


def gather_training(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    kept: Mapping[int, nn.Module],
    masters: Mapping[str, Tensor],
) -> Part:
    """All that the next steps depend on; the tensors are the living ones, not copies."""
    tensors = _prefixed(module.state_dict(), "module") | _prefixed(masters, "master")
    values: dict[str, Any] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            name = f"optimizer/{index}/{key}"
            if isinstance(value, Tensor):
                tensors[name] = value
            else:
                values[name] = value
    for version, older in kept.items():
        tensors |= _prefixed(older.state_dict(), f"kept/{version}")
    return Part(tensors, values)


def restore_training(
    part: Part,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    masters: Mapping[str, Tensor],
) -> dict[int, nn.Module]:
    """Puts it all back, in place; the older weights by version.

    The optimizer's settings are those it was built with.
    """
    module.load_state_dict(_below(part.tensors, "module"))
    for name, master in masters.items():
        master.copy_(part.tensors[f"master/{name}"])
    state: dict[int, dict[str, Any]] = defaultdict(dict)
    for name, value in _below({**part.tensors, **part.values}, "optimizer").items():
        index, _, key = name.partition("/")
        state[int(index)][key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": dict(state), "param_groups": groups})
    kept: dict[int, nn.Module] = {}
    for version in {int(name.split("/")[0]) for name in _below(part.tensors, "kept")}:
        kept[version] = copy.deepcopy(module)
        kept[version].load_state_dict(_below(part.tensors, f"kept/{version}"))
    return kept


def _prefixed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _below(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The values whose names begin with the prefix, named by the rest."""
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}
