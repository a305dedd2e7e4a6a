"""An objective at work: takes pack after pack, and gives the packs' features back.

Rules.
- Packs are trained in the plan's order, and none of the next round before this one's step is done.
- A feature's gradient is written into the feature's own bytes, which this stage holds on lease, and
  goes back to its encoder with the lease.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

from flowengine.api import Answer, Objective
from flowengine.channel import Inlet, Kind, Row
from flowengine.errors import RunError
from flowengine.pool import Payload
from flowengine.runtime.emission import Emission, Header, prepare
from flowengine.runtime.flops import Efforts
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site
from flowengine.runtime.spans import Work
from flowengine.runtime.stage import Stage
from flowengine.runtime.step_end import StepEnd

FeaturesOf = dict[str, list[Payload]]
"""Where a pack's features are, by modality: of each of its samples."""


class ObjectiveStage(Stage):
    """Takes packs and ends steps; subclasses compute. trainer: there once the stage is open."""

    trainer: StepEnd

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        assert isinstance(self.spec.what, Objective)
        self.objective: Objective[Any] = self.spec.what
        self.returns = site.topology.feedback_modalities()
        self._losses: list[tuple[int, float, int]] = []
        self.efforts = Efforts(site)
        self._unsent: list[Emission] = []

    def open(self) -> None:
        self.objective.open(self.context())
        for operator in self.returns.values():
            operator.open(self.context())

    @abstractmethod
    def train(self, row: Row, features: FeaturesOf, round_: Round) -> tuple[float, int]:
        """The loss of a pack and its number of targets; the features now hold their gradient."""

    @abstractmethod
    def answer(self, row: Row, features: FeaturesOf, round_: Round) -> Sequence[Answer]:
        """The answers to a held-out pack, one per sample."""

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
        features = self._take_features(row)
        if round_.held_out:
            self._answer(row, features, round_)
        else:
            self._losses.append((row.pack, *self.train(row, features, round_)))
        self._give_up_features(features, round_)
        inlet.give_back([row])
        return True

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
        if not round_.held_out:
            self.site.notify("losses", round_.step, self.site.worker.replica, self._losses)
            self._losses = []
            self.efforts.tell(round_.step)
            if self.trainer.trains:
                self.work_now = Work("optimizer", round_.step)
                self.trainer.finish_step(round_.step)
        return self.close_round()

    def _has_ended(self) -> bool:
        return super()._has_ended() and not self.trainer.is_finishing and not self._unsent
