"""Packs of nearly equal cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flowengine.api import Context, Lengths, Packer
from flowengine.operators.packing.cost_stream import CostStream
from flowengine.schedule import (
    FINE,
    Cost,
    Limits,
    StreamPacker,
    TooLongError,
    balance,
    count_cost,
    pack,
    warm_balance,
    warm_stream,
)


class CostPacker(Packer):
    """Makes one step's packs nearly equal in cost.

    max_tokens: the most tokens a pack holds.
    min_packs: at least so many packs per step, if it has as many samples; with several packs the
        encoder can work on one while the language model works on another.
    replicas: how many replicas of the objective train at a time. A step then has a multiple of so
        many packs, if it has as many samples, and packs of like cost share a slot.
    cost: what a sample costs; a Cost, or a function from Lengths to a number of at least 0, which
        must be importable by name where the packer goes to another process. "measured" begins with
        tokens and goes over to what the objective's packs were measured to take: packs then
        depend on those times, and the run's record says on which.
    max_cost: the most a pack costs, in the unit of `cost`; None has no limit.
    max_rows: the most feature rows a pack holds, per modality; a modality left out has no limit.
    max_sizes: the same for what samples say in `Lengths.sizes`, e.g. {"images": 16}.
    window: with when="ready", how many samples may wait to be combined.
    group: with when="ready", how many samples in a row an encoder takes at a time, of at most
        `max_tokens` together.
    max_deferred: so many samples at most may be left to the next step, each once, where a step
        without them needs a pack less. Steps are other samples then than those of the plain loop.
    too_long: what becomes of a sample that exceeds a limit: "error", "own-pack" for a pack of its
        own, or "dead-letter" to leave it out.
    """

    max_tokens: int
    min_packs: int = 1
    replicas: int = 1
    cost: Cost | Callable[[Lengths], float] | Literal["measured"] = Cost()
    max_cost: float | None = None
    max_rows: Mapping[str, int] = field(default_factory=dict)
    max_sizes: Mapping[str, int] = field(default_factory=dict)
    window: int = 32
    group: int = 8
    max_deferred: int = 0

    def __post_init__(self) -> None:
        if self.when == "ready" and self.cost == "measured":
            raise ValueError(
                'pack: cost is "measured", which packs are planned with, and when is "ready"; '
                'expected when="planned"'
            )

    _measured = Cost()

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        """Members ascend within a pack, and the packs are in the order of their first members; with
        replicas, the costliest come first.

        Raises TooLongError for a sample that fits no pack, unless it may have its own; ValueError
        for a sample that does not say one of the sizes that are limited.
        """
        try:
            return self._group(lengths) if self.when == "ready" else self._balance(lengths)
        except TooLongError as error:
            remedy = self._remedies().get(error.unit, error.remedy)
            raise TooLongError(
                error.position, error.unit, error.size, error.limit, remedy
            ) from None

    def stream(self) -> CostStream:
        warm_stream()
        limits = self._limits()
        if self.max_cost is not None:
            limits["cost"] = FINE
        packer = StreamPacker(
            max_tokens=self.max_tokens, window=self.window, limits=limits, too_long="own-pack"
        )
        return CostStream(packer, self._weigh)

    def prepare(self) -> None:
        warm_balance()
        if self.when == "ready":
            warm_stream()

    def open(self, context: Context) -> None:
        del context
        warm_balance()

    def learns_cost(self) -> bool:
        return self.cost == "measured"

    def learn_cost(self, *, linear: float, quadratic: float, constant: float) -> None:
        self._measured = Cost(linear=linear, quadratic=quadratic, constant=constant)

    def defer(self, lengths: Sequence[Lengths], *, may: Sequence[bool]) -> list[int]:
        """The fewest that are found, the shortest that do; none where no pack is saved."""
        if not self.max_deferred:
            return []
        tokens = [min(sample.tokens, self.max_tokens) for sample in lengths]
        sizes, limits = self._sizes(lengths), self._limits()

        def count(left_out: Sequence[int]) -> int:
            kept = [index for index in range(len(tokens)) if index not in left_out]
            _, offsets = pack(
                [tokens[index] for index in kept],
                max_tokens=self.max_tokens,
                sizes={name: [column[index] for index in kept] for name, column in sizes.items()},
                limits=limits,
                too_long="own-pack",
            )
            return len(offsets) - 1

        return _choose(tokens, may, count, max_tokens=self.max_tokens, most=self.max_deferred)

    def cost_of(self, members: Sequence[Lengths]) -> float:
        """The cost of the pack, as `cost` has it."""
        return float(self._costs(members).sum())

    def _balance(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        costs = self._costs(lengths)
        packs = self._even(lengths, costs, min_packs=self.min_packs)
        if missing := -len(packs) % self.replicas:
            packs = self._even(lengths, costs, min_packs=len(packs) + missing)
        if self.replicas == 1:
            return packs
        return sorted(packs, key=lambda members: -float(costs[members].sum()))

    def _even(
        self, lengths: Sequence[Lengths], costs: NDArray[np.float64], *, min_packs: int
    ) -> list[list[int]]:
        ids, offsets = balance(
            [sample.tokens for sample in lengths],
            costs,
            max_tokens=self.max_tokens,
            min_packs=min_packs,
            max_cost=self.max_cost,
            sizes=self._sizes(lengths),
            limits=self._limits(),
            too_long=self._policy(),
        )
        return [ids[start:stop].tolist() for start, stop in pairwise(offsets.tolist())]

    def _group(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        """What an encoder takes at a time; every sample alone is within the limits."""
        limits = Limits(
            [sample.tokens for sample in lengths],
            max_tokens=self.max_tokens,
            sizes=self._sizes(lengths),
            limits=self._limits(),
            costs=self._costs(lengths),
            max_cost=self.max_cost,
        )
        limits.confine(self._policy())
        groups: list[list[int]] = []
        room = 0
        for index, sample in enumerate(lengths):
            if not groups or len(groups[-1]) == self.group or sample.tokens > room:
                groups.append([])
                room = self.max_tokens
            groups[-1].append(index)
            room -= sample.tokens
        return groups

    def _policy(self) -> Literal["error", "own-pack"]:
        return "own-pack" if self.too_long == "own-pack" else "error"

    def _weigh(self, sample: Lengths) -> dict[str, int]:
        sizes = {name: each for name, (each,) in self._sizes([sample]).items()}
        if self.max_cost is not None:
            sizes["cost"] = int(count_cost(self._costs([sample]), self.max_cost)[0])
        return sizes

    def _costs(self, lengths: Sequence[Lengths]) -> NDArray[np.float64]:
        cost = self._measured if self.cost == "measured" else self.cost
        if isinstance(cost, Cost):
            return cost.of_samples(lengths)
        return np.array([cost(sample) for sample in lengths], np.float64)

    def _limits(self) -> dict[str, int]:
        return {f"{name} rows": most for name, most in self.max_rows.items()} | dict(self.max_sizes)

    def _sizes(self, lengths: Sequence[Lengths]) -> dict[str, list[int]]:
        rows = {f"{name} rows": [s.media.get(name, 0) for s in lengths] for name in self.max_rows}
        return rows | {name: [_size(s, name) for s in lengths] for name in self.max_sizes}

    def _remedies(self) -> dict[str, str]:
        rows = {f"{name} rows": f'max_rows["{name}"]' for name in self.max_rows}
        return rows | {name: f'max_sizes["{name}"]' for name in self.max_sizes}


def _choose(
    tokens: Sequence[int],
    may: Sequence[bool],
    count: Callable[[Sequence[int]], int],
    *,
    max_tokens: int,
    most: int,
) -> list[int]:
    """At most so many samples without which `count` gives a pack less; none if they are not found.

    The shortest that has what is too much for one pack less; while none has, the longest.
    """
    num_packs = count(())
    excess = sum(tokens) - (num_packs - 1) * max_tokens
    free = sorted((index for index, free in enumerate(may) if free), key=lambda i: tokens[i])
    chosen: list[int] = []
    while num_packs > 1 and free and len(chosen) < most:
        place = next((p for p, i in enumerate(free) if tokens[i] >= excess), len(free) - 1)
        chosen.append(free.pop(place))
        excess -= tokens[chosen[-1]]
        if excess <= 0 and count(chosen) < num_packs:
            return chosen
    return []


def _size(sample: Lengths, name: str) -> int:
    if name not in sample.sizes:
        raise ValueError(
            f'pack: max_sizes has "{name}", a sample says {sorted(sample.sizes)}; expected '
            f'Lengths.sizes["{name}"] of every sample, from the source\'s lengths()'
        )
    return sample.sizes[name]
