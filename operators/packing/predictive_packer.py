"""Packs in which neither the encoders nor the language model have more work than in others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from flowengine.api import Lengths, Packer
from flowengine.operators.packing.cost_packer import CostPacker
from flowengine.schedule import Cost

Floats = NDArray[np.float64]


class PredictivePacker(Packer):
    """Deals samples to packs by what they are predicted to take in every stage, after DFLOP's
    scheduler (arXiv 2603.25120): the costliest first, each to the pack whose slowest stage then
    takes least. What a step waits for is the costliest stage of its costliest pack.

    max_tokens, min_packs, too_long: as for CostPacker, whose packs are taken where they are
        better, or where samples dealt so find no room.
    objective: seconds of a sample in the language model, over its tokens. encoders: by modality,
        seconds of a sample in one replica, over its feature rows, already divided by the number of
        replicas. A profile has both (flowengine profile).
    corrects: take over what the objective's packs were measured to take, while that is worth it:
        the engine tells it every fit, and keeps it with checkpoints.
    correction_s: what following a correction costs, in seconds a step. A correction whose plans
        are expected to save less is left alone, and looked at again with the next fit.
    """

    max_tokens: int
    objective: Cost
    encoders: Mapping[str, Cost] = field(default_factory=dict)
    min_packs: int = 1
    corrects: bool = False
    correction_s: float = 0.001

    _measured: Cost | None = None

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        """Members ascend within a pack, packs are in the order of their first members."""
        expected = self._plan(lengths, self.objective)
        if self._measured is None:
            return expected
        corrected = self._plan(lengths, self._measured)
        saved = self._slowest(lengths, expected) - self._slowest(lengths, corrected)
        return corrected if saved > self.correction_s else expected

    def cost_of(self, members: Sequence[Lengths]) -> float:
        """Seconds of the pack in its slowest stage."""
        return self._slowest(members, [list(range(len(members)))])

    def learns_cost(self) -> bool:
        return self.corrects

    def learn_cost(self, *, linear: float, quadratic: float, constant: float) -> None:
        self._measured = Cost(linear=linear, quadratic=quadratic, constant=constant)

    def _plan(self, lengths: Sequence[Lengths], objective: Cost) -> list[list[int]]:
        seconds = self._seconds(lengths, objective)
        tried = [self._by_cost(lengths, cost) for cost in (Cost(), objective)]
        dealt = _deal(seconds, [s.tokens for s in lengths], self.max_tokens, len(tried[0]))
        if dealt is not None:
            tried.insert(0, dealt)
        return min(tried, key=lambda packs: _level(seconds, packs))

    def _by_cost(self, lengths: Sequence[Lengths], cost: Cost) -> list[list[int]]:
        """CostPacker's packs, by the cost of one stage."""
        return CostPacker(
            max_tokens=self.max_tokens,
            min_packs=self.min_packs,
            cost=cost,
            too_long=self.too_long,
        ).plan(lengths)

    def _slowest(self, lengths: Sequence[Lengths], packs: Sequence[Sequence[int]]) -> float:
        objective = self.objective if self._measured is None else self._measured
        return _level(self._seconds(lengths, objective), packs)

    def _seconds(self, lengths: Sequence[Lengths], objective: Cost) -> Floats:
        """Of every sample in every stage: [samples, 1 + encoders]."""
        columns = [objective.of_samples(lengths)]
        for modality, cost in self.encoders.items():
            rows = np.array([each.media.get(modality, 0) for each in lengths], np.float64)
            columns.append(
                rows * (cost.linear + cost.quadratic * rows) + cost.constant * (rows > 0)
            )
        return np.stack(columns, axis=1)


def _deal(
    seconds: Floats, tokens: Sequence[int], max_tokens: int, num_packs: int
) -> list[list[int]] | None:
    """Longest processing time first, over several stages; None where a sample finds no room."""
    loads = np.zeros((num_packs, seconds.shape[1]))
    room = np.full(num_packs, max_tokens)
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    for sample in np.argsort(-seconds.max(axis=1), kind="stable").tolist():
        after = (loads + seconds[sample]).max(axis=1)
        after[room < tokens[sample]] = np.inf
        pack = int(after.argmin())
        if not np.isfinite(after[pack]):
            return None
        packs[pack].append(sample)
        loads[pack] += seconds[sample]
        room[pack] -= tokens[sample]
    return sorted(sorted(pack) for pack in packs if pack)


def _level(seconds: Floats, packs: Sequence[Sequence[int]]) -> float:
    """What the costliest stage of the costliest pack takes."""
    return max((float(seconds[list(pack)].sum(axis=0).max()) for pack in packs), default=0.0)
