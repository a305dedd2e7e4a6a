"""A pack as an objective works on it: its features as leaves, and where they lie in the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flowengine.api import Joined, Pack, Sample, join_samples
from flowengine.channel import Kind, Row
from flowengine.pool import Payload, Pool, inline_tensor
from flowengine.runtime.stage import Stage


@dataclass
class LoadedPack:
    """pack: its features are leaves. payloads: by modality, those that make up a leaf's rows."""

    pack: Pack
    payloads: dict[str, list[Payload]]

    def write_gradient(self, pool: Pool, modality: str, gradient: Tensor) -> None:
        """Writes a leaf's gradient over the bytes of its features."""
        first = 0
        for part in self.payloads[modality]:
            if part.data is None:
                count = part.shape[0]
                pool.view(part).copy_(gradient[first : first + count])
                first += count

    def give_up(self, stage: Stage, *, with_gradient: Collection[str]) -> None:
        """Returns the leases of the features, of these modalities with their gradients."""
        for modality, parts in self.payloads.items():
            counts = Counter(part.span for part in parts if part.data is None)
            for address, count in counts.items():
                stage.pool.let_go(address, count)
            kind = Kind.GRADIENT if modality in with_gradient else Kind.RELEASE
            stage.give_up(counts.items(), kind)


def load_pack(stage: Stage, row: Row, *, learning: Collection[str]) -> LoadedPack:
    """The pack of this row. learning: the modalities whose features are to have a gradient."""
    ids, samples = [], []
    payloads: dict[str, list[Payload]] = {}
    for sample_id, tree, features in row.tree:
        ids.append(sample_id)
        samples.append(
            Sample(
                tokens=stage.load(tree["tokens"]),
                labels=stage.load(tree["labels"]),
                note=tree["note"],
                grids={name: stage.load(grid) for name, grid in tree["grids"].items()},
            )
        )
        for modality, payload in features.items():
            payloads.setdefault(modality, []).append(payload)
    for parts in payloads.values():
        for part in parts:
            if part.data is None:
                stage.pool.hold(part)
    joined = join_samples(tuple(ids), tuple(Joined(sample, {}) for sample in samples))
    rows = {modality: _rows(stage.pool, parts) for modality, parts in payloads.items()}
    return LoadedPack(with_leaves(replace(joined, features=rows), learning), payloads)


def with_leaves(pack: Pack, learning: Collection[str]) -> Pack:
    """The pack, its features ready to have a gradient where they are to learn."""
    for modality, rows in pack.features.items():
        rows.requires_grad_(modality in learning)
    return pack


def _rows(pool: Pool, parts: list[Payload]) -> Tensor:
    """All rows of one modality: a view where they lie side by side, else a copy."""
    filled = [part for part in parts if part.data is None]
    if not filled:
        return inline_tensor(parts[0]) if parts else torch.empty(0)
    whole = _side_by_side(filled)
    if whole is not None:
        return pool.view(whole).detach()
    return pool.copy(filled)


def _side_by_side(parts: list[Payload]) -> Payload | None:
    """One payload over all of these, if they follow each other in one span."""
    first = parts[0]
    end = first.offset
    for part in parts:
        if part.span != first.span or part.offset != end:
            return None
        end += part.num_bytes
    rows = sum(part.shape[0] for part in parts)
    return Payload(None, first.span, first.offset, first.dtype, (rows, *first.shape[1:]))
