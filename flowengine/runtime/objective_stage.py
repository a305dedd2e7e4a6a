"""An objective at work: takes pack after pack, and gives the packs' features back.

Rules.
- Packs are trained in the plan's order, and none of the next round before this one's step is done.
- Packs are worked on slot by slot, one pack per way. In a gang all ranks work on a slot at once:
  one without a pack of its own works on a copy of another's, whose loss counts nothing; one that
  does not lead works on its leader's. Neither reports a loss or returns a gradient.
- A feature's gradient is written into the feature's own bytes, which this stage holds on lease, and
  goes back to its encoder with the lease.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

from flowengine.api import Answer, Objective
from flowengine.channel import Kind, Row
from flowengine.errors import RunError
from flowengine.pool import Payload
from flowengine.runtime.emission import Emission, Header, prepare
from flowengine.runtime.flops import Efforts
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site, packs_ready
from flowengine.runtime.spans import Work
from flowengine.runtime.stage import OTHER_RANKS, Stage
from flowengine.runtime.step_end import StepEnd

FeaturesOf = dict[str, list[Payload]]
"""Where a pack's features are, by modality: of each of its samples."""


class ObjectiveStage(Stage):
    """Takes packs and ends steps; subclasses compute.

    trainer: there once the stage is open. filled: by rank of the gang, who has a pack of its own in
    the slot now.
    """

    trainer: StepEnd

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        assert isinstance(self.spec.what, Objective)
        self.objective: Objective[Any] = self.spec.what
        self.returns = site.topology.feedback_modalities()
        self._losses: list[tuple[int, float, int]] = []
        self.efforts = Efforts(site)
        self._times: list[tuple[list[int], float]] = []
        self._is_warm = False
        self._packs_ready = any(packs_ready(stage) for stage in site.graph.stages)
        self._unsent: list[Emission] = []
        self._slot = 0
        self.filled: tuple[bool, ...] = ()

    def open(self) -> None:
        self.objective.open(self.context())
        for operator in self.returns.values():
            operator.open(self.context())

    @abstractmethod
    def train(self, row: Row | None, features: FeaturesOf, round_: Round) -> tuple[float, int]:
        """The loss of a pack and its number of targets; the features now hold their gradient. row:
        None for a copy of another rank's pack."""

    @abstractmethod
    def answer(self, row: Row | None, features: FeaturesOf, round_: Round) -> Sequence[Answer]:
        """The answers to a held-out pack, one per sample. row: as in `train`."""

    def close(self) -> None:
        self.objective.close()
        for operator in self.returns.values():
            operator.close()
        if "trainer" in vars(self):
            self.trainer.close()
        if "trainer" in vars(self):
            self.trainer.close()

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
        self.filled = order.filled
        self._run(round_)
        self._slot += 1
        return True

    def end(self) -> str:
        return self.trainer.end(finishing=self.finishing)

    @property
    def next_pack(self) -> int:
        """The pack of this slot that is this worker's, if the round has as many."""
        return self._slot * self.spec.ways + self.site.worker.way

    def _able(self, round_: Round) -> list[str]:
        if self._packs_ready:  # how many there are is known with the last
            return ["pack"] if self._has_row() else ["update"] if self.is_closed() else []
        num_packs = len(round_.pack_sizes)
        if self._slot * self.spec.ways >= num_packs:
            return ["update"] if self.is_closed() else []
        is_idle = not self.site.worker.leads or self.next_pack >= num_packs
        return ["pack"] if is_idle or self._has_row() else []

    def _has_row(self) -> bool:
        (inlet,) = self.site.inlets
        return bool(inlet.rows) and inlet.rows[0].number == self.current

    def _run(self, round_: Round) -> None:
        if self._has_row():
            self._run_own(round_)
        elif any(self.filled) and round_.held_out:
            self.answer(None, {}, round_)
        elif any(self.filled):
            self.train(None, {}, round_)

    def _run_own(self, round_: Round) -> None:
        (inlet,) = self.site.inlets
        row = inlet.rows.popleft()
        what = "answer" if round_.held_out else "train"
        work = Work(what, round_.step, round_.held_out, row.pack)
        self.take_in_hand(tuple(member[0] for member in row.tree), work)
        began = self.site.clock()
        features = self._take_features(row)
        if round_.held_out:
            self._answer(row, features, round_)
        else:
            self._losses.append((row.pack, *self.train(row, features, round_)))
        self._give_up_features(features, round_)
        inlet.give_back([row])
        if self._is_warm and not round_.held_out:
            lengths = [tree["tokens"].shape[0] for _, tree, _ in row.tree]
            self._times.append((lengths, self.site.clock() - began))

    def _take_features(self, row: Row) -> FeaturesOf:
        features: FeaturesOf = {}
        for _, _, by_modality in row.tree:
            for modality, payload in by_modality.items():
                features.setdefault(modality, []).append(payload)
                if payload.data is None:
                    self.pool.hold(payload)
        return features

    def _give_up_features(self, features: FeaturesOf, round_: Round) -> None:
        for modality, parts in features.items():
            counts = Counter(part.span for part in parts if part.data is None)
            for address, count in counts.items():
                self.pool.let_go(address, count)
            trained = modality in self.returns and not round_.held_out
            self.give_up(counts.items(), Kind.GRADIENT if trained else Kind.RELEASE)

    def _answer(self, row: Row, features: FeaturesOf, round_: Round) -> None:
        answers = self.answer(row, features, round_)
        ids = [member[0] for member in row.tree]
        if len(answers) != len(ids):
            raise RunError(
                f"{self.spec}: answers() gave {len(answers)} answers for {len(ids)} samples"
            )
        edges = [edge for edge in self.site.edges if edge.output == "answers"]
        values: list[tuple[Header, Answer]] = [
            (Header(round_, sample, row.pack, place), answer)
            for place, (sample, answer) in enumerate(zip(ids, answers, strict=True))
        ]
        if edges:
            self._unsent.append(prepare(self.site, edges, values))

    # the end of a round

    def _end_round(self) -> bool:
        round_ = self.rounds[self.current]
        self.objective.flush()
        for operator in self.returns.values():
            operator.flush()
        self._slot = 0
        if not round_.held_out:
            if self.site.worker.leads:
                self.site.notify("losses", round_.step, self.site.worker.way, self._losses)
            self._losses = []
            self.efforts.tell(round_.step)
            if self._times:
                self.site.notify("times_of", round_.step, self._times)
            self._times = []
            self._is_warm = True
            if self.trainer.trains:
                self.work_now = Work("optimizer", round_.step)
                self.trainer.finish_step(round_.step)
        return self.close_round()

    def _has_ended(self) -> bool:
        return super()._has_ended() and not self.trainer.is_finishing and not self._unsent
