"""An objective's tensors: the loss of a pack, and the gradients of its features.

A pack's summed loss is divided by the targets of the whole step before its backward, so that the
gradients of all packs simply add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from flowengine.api import IGNORED, Answer, Gradients, Joined, Pack, Sample, join_samples
from flowengine.channel import Row
from flowengine.errors import RunError
from flowengine.pool import Payload, Pool, inline_tensor
from flowengine.runtime.objective_stage import FeaturesOf, ObjectiveStage
from flowengine.runtime.round import Round
from flowengine.runtime.trainer import Trainer


class TensorObjective(ObjectiveStage):
    """Runs `loss` and its backward on training packs, `answers` on held-out ones."""

    trainer: Trainer
    pool: Pool

    def open(self) -> None:
        super().open()
        self.trainer = Trainer(self.site, staleness=0)

    def train(self, row: Row | None, features: FeaturesOf, round_: Round) -> tuple[float, int]:
        pack = self._take_pack(row, features, learns=True)
        torch.manual_seed(self.site.seed("forward", round_.number, self.next_pack))
        self.trainer.module.train(self.trainer.trains)
        owns = row is not None
        with self.efforts.counting(round_.step, learns=True) if owns else nullcontext():
            loss = self.objective.loss(self.trainer.module, pack)
        if loss.ndim != 0:
            raise RunError(
                f"{self.spec}: loss has shape {tuple(loss.shape)}, expected a scalar sum"
            )
        value = float(loss.detach())
        if not math.isfinite(value):
            raise RunError(
                f"{self.spec}: step {round_.step} has the loss {value} on the samples "
                f"{list(pack.ids)}; the weights are those of the step before"
            )
        targets = int((pack.labels != IGNORED).sum())
        if loss.requires_grad:
            counts = self.filled[self.site.worker.leader]
            torch.autograd.backward(loss / round_.targets if counts else loss * 0.0)
            self.trainer.absorb(self.trainer.module)
        if row is not None:
            self._return_gradients(pack, features)
        return value, targets

    def _return_gradients(self, pack: Pack, features: FeaturesOf) -> None:
        for modality, operator in self.returns.items():
            leaf = pack.features.get(modality)
            if leaf is not None and leaf.numel():
                gradient = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
                returned = operator.process(Gradients(modality, gradient)).rows
                if (returned.shape, returned.dtype) != (gradient.shape, gradient.dtype):
                    raise self.fail_row(
                        f"{type(operator).__name__} gave {modality} gradients of shape "
                        f"{tuple(returned.shape)} and {returned.dtype}; expected those of the "
                        f"features, {tuple(gradient.shape)} and {gradient.dtype}"
                    )
                self._write_gradient(features[modality], returned)

    def _write_gradient(self, parts: list[Payload], gradient: Tensor) -> None:
        first = 0
        for part in parts:
            if part.data is None:
                count = part.shape[0]
                self.pool.view(part).copy_(gradient[first : first + count])
                first += count

    def answer(self, row: Row | None, features: FeaturesOf, round_: Round) -> Sequence[Answer]:
        pack = self._take_pack(row, features, learns=False)
        torch.manual_seed(self.site.seed("forward", round_.number, self.next_pack))
        self.trainer.module.eval()
        with torch.no_grad():
            return self.objective.answers(self.trainer.module, pack)

    def _take_pack(self, row: Row | None, features: FeaturesOf, *, learns: bool) -> Pack:
        """This rank's own pack, its features as leaves; or a copy of another's."""
        pack = self._load_pack(row, features) if row is not None else None
        if self.site.mesh is not None:
            pack = self.site.mesh.share_out(pack, self.filled, kind=Pack)
        assert pack is not None
        for modality, rows in pack.features.items():
            rows.requires_grad_(learns and modality in self.returns)
        return pack

    def _load_pack(self, row: Row, features: FeaturesOf) -> Pack:
        ids, samples = [], []
        for sample_id, tree, _ in row.tree:
            ids.append(sample_id)
            samples.append(
                Sample(
                    tokens=self.load(tree["tokens"]),
                    labels=self.load(tree["labels"]),
                    note=tree["note"],
                    grids={name: self.load(grid) for name, grid in tree["grids"].items()},
                )
            )
        rows = {modality: self._rows(parts) for modality, parts in features.items()}
        joined = tuple(Joined(sample, {}) for sample in samples)
        return replace(join_samples(tuple(ids), joined), features=rows)

    def _rows(self, parts: list[Payload]) -> Tensor:
        """All rows of one modality: a view where they lie side by side, else a copy."""
        filled = [part for part in parts if part.data is None]
        if not filled:
            return inline_tensor(parts[0]) if parts else torch.empty(0)
        whole = _side_by_side(filled)
        if whole is not None:
            return self.pool.view(whole).detach()
        return self.pool.copy(filled)


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
