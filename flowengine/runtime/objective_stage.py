"""An objective at work: the loss of pack after pack, and the gradients of the packs' features.

Rules.
- Packs are trained in the plan's order. A pack's summed loss is divided by the targets of the whole
  step before its backward, so that the gradients of all packs simply add up.
- A feature's gradient is written into the feature's own bytes, which this stage holds on lease, and
  goes back to its encoder with the lease.
- Packs are worked on slot by slot, one pack per way. In a gang all ranks work on a slot at once:
  one without a pack of its own works on a copy of another's, whose loss counts nothing; one that
  does not lead works on its leader's. Neither reports a loss or returns a gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from flowengine.api import IGNORED, Answer, Gradients, Objective, Pack
from flowengine.channel import Row
from flowengine.errors import RunError
from flowengine.runtime.emission import Emission, Header, prepare
from flowengine.runtime.loaded_pack import LoadedPack, load_pack, with_leaves
from flowengine.runtime.muster import Order
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site
from flowengine.runtime.spans import Work
from flowengine.runtime.stage import OTHER_RANKS, Stage
from flowengine.runtime.trainer import Trainer


class ObjectiveStage(Stage):
    """Runs `loss` and its backward on training packs, `answers` on held-out ones."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        assert isinstance(self.spec.what, Objective)
        self._objective: Objective[Any] = self.spec.what
        self._returns = site.topology.feedback_modalities()
        self._losses: list[tuple[int, float, int]] = []
        self._unsent: list[Emission] = []
        self._slot = 0

    def open(self) -> None:
        self._objective.open(self.context())
        for operator in self._returns.values():
            operator.open(self.context())
        self.trainer = Trainer(self.site, staleness=0)

    def close(self) -> None:
        self._objective.close()
        for operator in self._returns.values():
            operator.close()

    def on_notice(self, subject: str, fields: list[Any]) -> None:
        self.trainer.on_notice(subject, fields)

    def work(self) -> bool:
        if self._unsent:
            return self.emit(self._unsent.pop(0))
        if self.trainer.is_finishing:
            return self.wait("blocked", "the other stages' gradients")
        round_ = self.rounds.get(self.current)
        able = self._able(round_) if round_ is not None else []
        if round_ is None or not able:
            return self.wait("starved", "packs")
        order = self.muster.agree(able, filled=self._has_row())
        if order is None:
            return self.wait("blocked", OTHER_RANKS)
        if order.action == "update":
            return self._end_round()
        self._run(round_, order)
        self._slot += 1
        return True

    def end(self) -> str:
        return self.trainer.end(finishing=self.finishing)

    # the next slot

    @property
    def _next(self) -> int:
        """The pack of the next slot that is this worker's, if the round has as many."""
        return self._slot * self.spec.ways + self.site.worker.way

    def _able(self, round_: Round) -> list[str]:
        num_packs = len(round_.pack_sizes)
        if self._slot * self.spec.ways >= num_packs:
            return ["update"] if self.is_closed() else []
        is_idle = not self.site.worker.leads or self._next >= num_packs
        return ["pack"] if is_idle or self._has_row() else []

    def _has_row(self) -> bool:
        (inlet,) = self.site.inlets
        return bool(inlet.rows) and inlet.rows[0].number == self.current

    def _run(self, round_: Round, order: Order) -> None:
        (inlet,) = self.site.inlets
        row = inlet.rows.popleft() if self._has_row() else None
        learning = () if round_.held_out else tuple(self._returns)
        loaded = None
        if row is not None:
            what = "answer" if round_.held_out else "train"
            work = Work(what, round_.step, round_.held_out, row.pack)
            self.take_in_hand(tuple(member[0] for member in row.tree), work)
            loaded = load_pack(self, row, learning=learning)
        pack = loaded.pack if loaded is not None else None
        if self.site.mesh is not None:
            pack = with_leaves(self.site.mesh.share_out(pack, order.filled, kind=Pack), learning)
        if pack is not None:
            torch.manual_seed(self.site.seed("forward", round_.number, self._next))
            if round_.held_out:
                self._answer(pack, row, round_)
            else:
                counts = order.filled[self.site.worker.leader]
                self._train(pack, loaded, round_, counts=counts)
        if loaded is not None and row is not None:
            loaded.give_up(self, with_gradient=learning)
            inlet.give_back([row])

    # training

    def _train(self, pack: Pack, loaded: LoadedPack | None, round_: Round, *, counts: bool) -> None:
        """loaded: of a pack of this worker's own; counts: whether its loss is the step's."""
        self.trainer.module.train(self.trainer.trains)
        loss = self._objective.loss(self.trainer.module, pack)
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
        if loss.requires_grad:
            torch.autograd.backward(loss / round_.targets if counts else loss * 0.0)
        if loaded is not None:
            targets = int((pack.labels != IGNORED).sum())
            self._losses.append((self._next, value, targets))
            self._return_gradients(loaded)

    def _return_gradients(self, loaded: LoadedPack) -> None:
        for modality, operator in self._returns.items():
            leaf = loaded.pack.features.get(modality)
            if leaf is not None and leaf.numel():
                gradient = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
                returned = operator.process(Gradients(modality, gradient)).rows
                if (returned.shape, returned.dtype) != (gradient.shape, gradient.dtype):
                    raise self.fail_row(
                        f"{type(operator).__name__} gave {modality} gradients of shape "
                        f"{tuple(returned.shape)} and {returned.dtype}; expected those of the "
                        f"features, {tuple(gradient.shape)} and {gradient.dtype}"
                    )
                loaded.write_gradient(self.pool, modality, returned)

    # evaluation

    def _answer(self, pack: Pack, row: Row | None, round_: Round) -> None:
        """row: of a pack of this worker's own."""
        self.trainer.module.eval()
        with torch.no_grad():
            answers = self._objective.answers(self.trainer.module, pack)
        if len(answers) != len(pack.ids):
            raise RunError(
                f"{self.spec}: answers() gave {len(answers)} answers for {len(pack.ids)} samples"
            )
        if row is None:
            return
        edges = [edge for edge in self.site.edges if edge.output == "answers"]
        values: list[tuple[Header, Answer]] = [
            (Header(round_, sample, row.pack, place), answer)
            for place, (sample, answer) in enumerate(zip(pack.ids, answers, strict=True))
        ]
        if edges:
            self._unsent.append(prepare(self.site, edges, values))

    # the end of a round

    def _end_round(self) -> bool:
        round_ = self.rounds[self.current]
        self._objective.flush()
        for operator in self._returns.values():
            operator.flush()
        self._slot = 0
        if not round_.held_out:
            if self.site.worker.leads:
                self.site.notify("losses", round_.step, self.site.worker.way, self._losses)
            self._losses = []
            if self.trainer.trains:
                self.work_now = Work("optimizer", round_.step)
                self.trainer.finish_step(round_.step)
        return self.close_round()

    def _has_ended(self) -> bool:
        return super()._has_ended() and not self.trainer.is_finishing and not self._unsent
