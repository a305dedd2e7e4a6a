"""Packs of nearly equal cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowengine.api import Lengths, Packer
from flowengine.schedule import Cost, TooLongError, balance


class CostPacker(Packer):
    """Makes one step's packs nearly equal in cost.

    max_tokens: the most tokens a pack holds.
    min_packs: at least so many packs per step, if it has as many samples; with several packs the
        encoder can work on one while the language model works on another.
    cost: what a sample costs; a Cost, or a function from Lengths to a number of at least 0, which
        must be importable by name where the packer goes to another process.
    max_cost: the most a pack costs, in the unit of `cost`; None has no limit.
    max_rows: the most feature rows a pack holds, per modality; a modality left out has no limit.
    max_sizes: the same for what samples say in `Lengths.sizes`, e.g. {"images": 16}.
    too_long: what becomes of a sample that exceeds a limit: "error", "own-pack" for a pack of its
        own, or "dead-letter" to leave it out.
    """

    max_tokens: int
    min_packs: int = 1
    cost: Cost | Callable[[Lengths], float] = Cost()
    max_cost: float | None = None
    max_rows: Mapping[str, int] = field(default_factory=dict)
    max_sizes: Mapping[str, int] = field(default_factory=dict)

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        """Members ascend within a pack, and the packs are in the order of their first members.

        Raises TooLongError for a sample that fits no pack, unless it may have its own; ValueError
        for a sample that does not say one of the sizes that are limited.
        """
        try:
            ids, offsets = balance(
                [sample.tokens for sample in lengths],
                self._costs(lengths),
                max_tokens=self.max_tokens,
                min_packs=self.min_packs,
                max_cost=self.max_cost,
                sizes=self._sizes(lengths),
                limits=self._limits(),
                too_long="own-pack" if self.too_long == "own-pack" else "error",
            )
        except TooLongError as error:
            remedy = self._remedies().get(error.unit, error.remedy)
            raise TooLongError(
                error.position, error.unit, error.size, error.limit, remedy
            ) from None
        return [ids[start:stop].tolist() for start, stop in pairwise(offsets.tolist())]

    def cost_of(self, members: Sequence[Lengths]) -> float:
        """The cost of the pack, as `cost` has it."""
        return float(self._costs(members).sum())

    def _costs(self, lengths: Sequence[Lengths]) -> NDArray[np.float64]:
        if isinstance(self.cost, Cost):
            return self.cost.of_samples(lengths)
        return np.array([self.cost(sample) for sample in lengths], np.float64)

    def _limits(self) -> dict[str, int]:
        return {f"{name} rows": most for name, most in self.max_rows.items()} | dict(self.max_sizes)

    def _sizes(self, lengths: Sequence[Lengths]) -> dict[str, list[int]]:
        rows = {f"{name} rows": [s.media.get(name, 0) for s in lengths] for name in self.max_rows}
        return rows | {name: [_size(s, name) for s in lengths] for name in self.max_sizes}

    def _remedies(self) -> dict[str, str]:
        rows = {f"{name} rows": f'max_rows["{name}"]' for name in self.max_rows}
        return rows | {name: f'max_sizes["{name}"]' for name in self.max_sizes}


def _size(sample: Lengths, name: str) -> int:
    if name not in sample.sizes:
        raise ValueError(
            f'pack: max_sizes has "{name}", a sample says {sorted(sample.sizes)}; expected '
            f'Lengths.sizes["{name}"] of every sample, from the source\'s lengths()'
        )
    return sample.sizes[name]
