"""A gang's torch.distributed group, and what its ranks send each other through it.

Every function here is a collective: all ranks it names call it, in the same order. What makes them
do so is the muster.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from flowengine.channel import Kind, flatten, restore
from flowengine.channel.message import decode, encode
from flowengine.graph.description import Gang
from flowengine.pool import Payload
from flowengine.pool.payload import dtype_name, dtype_of

LOOPBACK = "lo"
"""The network device of one machine."""

TIMEOUT = timedelta(seconds=300)
"""After so long a collective is given up. Ranks enter one only when all are ready, so what this
bounds is how much longer one may compute than another."""


class GangMesh:
    """One rank's place in its gang. mesh: of the dimensions "data" and "tensor"."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        data, tensor = mesh.shape
        self.gang = Gang(data=data, tensor=tensor)
        self.way, self.place = mesh.get_local_rank("data"), mesh.get_local_rank("tensor")

    def share_out(self, value: Any, filled: Sequence[bool], *, kind: Any = None) -> Any:
        """The value to work on: a tree of tensors, or of the dataclass `kind`.

        `filled` says by rank who has a value of its own. Ranks of one data place work on that of
        their first rank; where it has none, on a copy of the first value that there is.
        """
        tensor = self.gang.tensor
        by_way = [filled[way * tensor] for way in range(self.gang.data)]
        if self.place == 0 and not all(by_way):
            shown = self._broadcast(value, "data", by_way.index(True), kind)
            value = value if by_way[self.way] else shown
        if tensor > 1:
            value = self._broadcast(value, "tensor", 0, kind)
        return value

    def share_gradient(self, gradient: Tensor) -> None:
        """Overwrites it, in the ranks that share a data place, with that of their first rank."""
        if self.gang.tensor > 1:
            dist.broadcast(gradient, group=self.mesh.get_group("tensor"), group_src=0)

    @property
    def dimensions(self) -> list[str]:
        """The dimensions of the mesh that have more than one rank."""
        sizes = {"data": self.gang.data, "tensor": self.gang.tensor}
        return [name for name, size in sizes.items() if size > 1]

    def sum(self, values: Tensor, dimension: str) -> Tensor:
        """The sum of all ranks' values along a dimension of the mesh."""
        total = values.clone()
        dist.all_reduce(total, group=self.mesh.get_group(dimension))
        return total

    def close(self) -> None:
        """Leaves the group."""
        dist.destroy_process_group()

    def _broadcast(self, value: Any, dimension: str, source: int, kind: Any) -> Any:
        group = self.mesh.get_group(dimension)
        mine = self.mesh.get_local_rank(dimension) == source
        packed = _to_bytes(value) if mine else None
        sizes = torch.tensor([0, 0] if packed is None else [len(part) for part in packed])
        dist.broadcast(sizes, group=group, group_src=source)
        head, rest = sizes.tolist()
        body = torch.empty(head + rest, dtype=torch.uint8) if packed is None else torch.cat(packed)
        dist.broadcast(body, group=group, group_src=source)
        return value if mine else _from_bytes(kind, body[:head], body[head:])


def open_mesh(gang: Gang, rank: int, store: Store, *, interface: str | None = LOOPBACK) -> GangMesh:
    """Joins the group of this process's gang; returns when all ranks have. RuntimeError if they
    do not in time. interface: the network device that ranks talk over; None leaves it to
    gloo."""
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=gang.size, timeout=TIMEOUT)
    names = ("data", "tensor")
    return GangMesh(init_device_mesh("cpu", (gang.data, gang.tensor), mesh_dim_names=names))


def _to_bytes(value: Any) -> tuple[Tensor, Tensor]:
    """The tree of the value as a message, and its tensors' bytes one after the other."""
    parts: list[Tensor] = []

    def place(tensor: Tensor, _: bool) -> Payload:
        start = sum(len(part) for part in parts)
        parts.append(tensor.detach().contiguous().view(-1).view(torch.uint8))
        return Payload(None, 0, start, dtype_name(tensor.dtype), tuple(tensor.shape))

    head = encode((Kind.GANG, flatten(value, place)))[4:]
    nothing = torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(head), dtype=torch.uint8), torch.cat([nothing, *parts])


def _from_bytes(kind: Any, head: Tensor, body: Tensor) -> Any:
    def load(payload: Payload) -> Tensor:
        found = body[payload.offset : payload.offset + payload.num_bytes].clone()
        return found.view(dtype_of(payload.dtype)).view(payload.shape)

    _, tree = decode(head.numpy().tobytes())
    return restore(kind, tree, load)
