"""An objective at work: the loss of pack after pack, and the gradients of the packs' features.

Rules.
- Packs are trained in the plan's order. A pack's summed loss is divided by the targets of the whole
  step before its backward, so that the gradients of all packs simply add up.
- A feature's gradient is written into the feature's own bytes, which this stage holds on lease, and
  goes back to its encoder with the lease.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flowengine.api import IGNORED, Answer, Gradients, Joined, Objective, Pack, Sample, join_samples
from flowengine.channel import Inlet, Kind, Row
from flowengine.errors import RunError
from flowengine.pool import Payload, inline_tensor
from flowengine.runtime.emission import Emission, Header, prepare
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site
from flowengine.runtime.spans import Work
from flowengine.runtime.stage import Stage
from flowengine.runtime.trainer import Trainer


@dataclass
class _Loaded:
    """A pack with its features as leaves, and where the rows of each leaf lie in the pool."""

    pack: Pack
    ids: list[int]
    leaves: dict[str, Tensor]
    payloads: dict[str, list[Payload]]


class ObjectiveStage(Stage):
    """Runs `loss` and its backward on training packs, `answers` on held-out ones."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        assert isinstance(self.spec.what, Objective)
        self._objective: Objective[Any] = self.spec.what
        self._returns = site.topology.feedback_modalities()
        self._losses: list[tuple[int, float, int]] = []
        self._unsent: list[Emission] = []

    def open(self) -> None:
        self._objective.open(self.context())
        for operator in self._returns.values():
            operator.open(self.context())
        self.trainer = Trainer(self.site, staleness=0)

    def close(self) -> None:
        self._objective.close()
        for operator in self._returns.values():
            operator.close()
        if "trainer" in vars(self):
            self.trainer.close()

    def on_notice(self, subject: str, fields: list[Any]) -> None:
        self.trainer.on_notice(subject, fields)

    def work(self) -> bool:
        if self._unsent:
            return self.emit(self._unsent.pop(0))
        if self.trainer.is_finishing:
            return self.wait("blocked", "the other stages' gradients")
        (inlet,) = self.site.inlets
        if inlet.rows and inlet.rows[0].number == self.current:
            return self._run(inlet, inlet.rows.popleft())
        if self.current in self.rounds and self.is_closed():
            return self._end_round()
        return self.wait("starved", "packs")

    def end(self) -> str:
        return self.trainer.end(finishing=self.finishing)

    def _run(self, inlet: Inlet, row: Row) -> bool:
        round_ = self.rounds[self.current]
        what = "answer" if round_.held_out else "train"
        work = Work(what, round_.step, round_.held_out, row.pack)
        self.take_in_hand(tuple(member[0] for member in row.tree), work)
        loaded = self._load_pack(row, learns=not round_.held_out)
        torch.manual_seed(self.site.seed("forward", round_.number, row.pack))
        if round_.held_out:
            self._answer(loaded, row, round_)
        else:
            self._train(loaded, row, round_)
        self._give_up_features(loaded, round_)
        inlet.give_back([row])
        return True

    # the pack

    def _load_pack(self, row: Row, *, learns: bool) -> _Loaded:
        ids, samples = [], []
        payloads: dict[str, list[Payload]] = {}
        for sample_id, tree, features in row.tree:
            ids.append(sample_id)
            samples.append(
                Sample(
                    tokens=self.load(tree["tokens"]),
                    labels=self.load(tree["labels"]),
                    note=tree["note"],
                    grids={name: self.load(grid) for name, grid in tree["grids"].items()},
                )
            )
            for modality, payload in features.items():
                payloads.setdefault(modality, []).append(payload)
        for parts in payloads.values():
            for part in parts:
                if part.data is None:
                    self.pool.hold(part)
        leaves = {
            modality: self._rows(parts).requires_grad_(learns and modality in self._returns)
            for modality, parts in payloads.items()
        }
        joined = tuple(Joined(sample, {}) for sample in samples)
        pack = join_samples(tuple(ids), joined)
        return _Loaded(replace(pack, features=leaves), ids, leaves, payloads)

    def _rows(self, parts: list[Payload]) -> Tensor:
        """All rows of one modality: a view where they lie side by side, else a copy."""
        filled = [part for part in parts if part.data is None]
        if not filled:
            return inline_tensor(parts[0]) if parts else torch.empty(0)
        whole = _side_by_side(filled)
        if whole is not None:
            return self.pool.view(whole).detach()
        return self.pool.copy(filled)

    # training

    def _train(self, loaded: _Loaded, row: Row, round_: Round) -> None:
        self.trainer.module.train(self.trainer.trains)
        loss = self._objective.loss(self.trainer.module, loaded.pack)
        if loss.ndim != 0:
            raise RunError(
                f"{self.spec}: loss has shape {tuple(loss.shape)}, expected a scalar sum"
            )
        value = float(loss.detach())
        if not math.isfinite(value):
            raise RunError(
                f"{self.spec}: step {round_.step} has the loss {value} on the samples "
                f"{loaded.ids}; the weights are those of the step before"
            )
        targets = int((loaded.pack.labels != IGNORED).sum())
        self._losses.append((row.pack, value, targets))
        if loss.requires_grad:
            torch.autograd.backward(loss / round_.targets)
            self.trainer.absorb(self.trainer.module)
        for modality, operator in self._returns.items():
            leaf = loaded.leaves.get(modality)
            if leaf is not None and leaf.numel():
                gradient = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
                returned = operator.process(Gradients(modality, gradient)).rows
                if (returned.shape, returned.dtype) != (gradient.shape, gradient.dtype):
                    raise self.fail_row(
                        f"{type(operator).__name__} gave {modality} gradients of shape "
                        f"{tuple(returned.shape)} and {returned.dtype}; expected those of the "
                        f"features, {tuple(gradient.shape)} and {gradient.dtype}"
                    )
                self._write_gradient(loaded.payloads[modality], returned)

    def _write_gradient(self, parts: list[Payload], gradient: Tensor) -> None:
        first = 0
        for part in parts:
            if part.data is None:
                count = part.shape[0]
                self.pool.view(part).copy_(gradient[first : first + count])
                first += count

    def _give_up_features(self, loaded: _Loaded, round_: Round) -> None:
        for modality, parts in loaded.payloads.items():
            counts = Counter(part.span for part in parts if part.data is None)
            for address, count in counts.items():
                self.pool.let_go(address, count)
            trained = modality in self._returns and not round_.held_out
            self.give_up(counts.items(), Kind.GRADIENT if trained else Kind.RELEASE)

    # evaluation

    def _answer(self, loaded: _Loaded, row: Row, round_: Round) -> None:
        self.trainer.module.eval()
        with torch.no_grad():
            answers = self._objective.answers(self.trainer.module, loaded.pack)
        if len(answers) != len(loaded.ids):
            raise RunError(
                f"{self.spec}: answers() gave {len(answers)} answers for {len(loaded.ids)} samples"
            )
        edges = [edge for edge in self.site.edges if edge.output == "answers"]
        values: list[tuple[Header, Answer]] = [
            (Header(round_, sample, row.pack, place), answer)
            for place, (sample, answer) in enumerate(zip(loaded.ids, answers, strict=True))
        ]
        if edges:
            self._unsent.append(prepare(self.site, edges, values))

    # the end of a round

    def _end_round(self) -> bool:
        round_ = self.rounds[self.current]
        self._objective.flush()
        for operator in self._returns.values():
            operator.flush()
        if not round_.held_out:
            self.site.notify("losses", round_.step, self.site.worker.replica, self._losses)
            self._losses = []
            if self.trainer.trains:
                self.work_now = Work("optimizer", round_.step)
                self.trainer.finish_step(round_.step)
        return self.close_round()

    def _has_ended(self) -> bool:
        return super()._has_ended() and not self.trainer.is_finishing and not self._unsent


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
