"""Packs of nearly equal cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowengine.api import Lengths, Packer
from flowengine.schedule import Cost, balance


class CostPacker(Packer):
    """Makes one step's packs nearly equal in cost.

    max_tokens: the most tokens a pack holds.
    min_packs: at least so many packs per step, if it has as many samples; with several packs the
        encoder can work on one while the language model works on another.
    cost: what a sample costs; a Cost, or a function from Lengths to a number of at least 0, which
        must be importable by name where the packer goes to another process.
    max_rows: the most feature rows a pack holds, per modality; a modality left out has no limit.
    too_long: what becomes of a sample that exceeds a limit: "error", "own-pack" for a pack of its
        own, or "dead-letter" to leave it out.
    """

    max_tokens: int
    min_packs: int = 1
    cost: Cost | Callable[[Lengths], float] = Cost()
    max_rows: Mapping[str, int] = field(default_factory=dict)

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        """Members ascend within a pack, and the packs are in the order of their first members.

        Raises TooLongError for a sample that fits no pack, unless it may have its own.
        """
        ids, offsets = balance(
            [sample.tokens for sample in lengths],
            self._costs(lengths),
            max_tokens=self.max_tokens,
            min_packs=self.min_packs,
            rows={name: [each.media.get(name, 0) for each in lengths] for name in self.max_rows},
            max_rows=self.max_rows,
            too_long="own-pack" if self.too_long == "own-pack" else "error",
        )
        return [ids[start:stop].tolist() for start, stop in pairwise(offsets.tolist())]

    def cost_of(self, members: Sequence[Lengths]) -> float:
        """The cost of the pack, as `cost` has it."""
        return float(self._costs(members).sum())

    def _costs(self, lengths: Sequence[Lengths]) -> NDArray[np.float64]:
        if isinstance(self.cost, Cost):
            return self.cost.of_samples(lengths)
        return np.array([self.cost(sample) for sample in lengths], np.float64)
