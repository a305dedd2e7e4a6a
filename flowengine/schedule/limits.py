"""What a pack may hold at most, of several things at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowengine.schedule import kernels
from flowengine.schedule.fewest import fewest
from flowengine.schedule.lengths import (
    MOST_TOKENS,
    Integers,
    Small,
    TooLong,
    TooLongError,
    check_policy,
    integers,
)

FINE = 2**40
"""A pack's cost is counted in so many parts of the most it may be."""


def count_cost(costs: NDArray[np.float64], max_cost: float) -> Integers:
    """Costs as whole numbers, FINE of which are max_cost."""
    return np.rint(costs * (FINE / max_cost)).astype(np.int64)


class Limits:
    """Samples' sizes and their bounds.

    sizes: int64 [n, limits], tokens first. bounds: int64 [limits].
    """

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        max_tokens: int,
        sizes: Mapping[str, ArrayLike],
        limits: Mapping[str, int],
        costs: NDArray[np.float64] | None = None,
        max_cost: float | None = None,
    ) -> None:
        if missing := limits.keys() - sizes.keys():
            raise ValueError(
                f"pack: limits are on {sorted(limits)}, sizes are of {sorted(sizes)}; expected the "
                f"sizes of {sorted(missing)}"
            )
        columns = [integers(lengths), *(integers(sizes[name]) for name in limits)]
        self._units = ["tokens", *limits]
        bounds = [max_tokens, *limits.values()]
        self._costs, self._max_cost = costs, max_cost
        if max_cost is not None:
            if costs is None or not 0 < max_cost < np.inf:
                raise ValueError(f"pack: max_cost is {max_cost}; expected a number above 0")
            columns.append(count_cost(costs, max_cost))
            bounds.append(FINE)
            self._units.append("cost")
        if any(len(column) != len(columns[0]) for column in columns):
            raise ValueError(
                f"pack: sizes have {[len(column) for column in columns]} samples; expected equally "
                "many"
            )
        self.sizes: Integers = np.stack(columns, axis=1, dtype=np.int64)
        self.bounds: Integers = np.array(bounds, np.int64)

    def confine(self, too_long: TooLong) -> Integers | None:
        """Deals with samples that exceed a bound, by their policy; the samples that stay (None:
        all).

        One that has its own pack is given all the room of it.
        """
        check_policy(too_long)
        over = np.argwhere(self.sizes > self.bounds)
        if len(over) == 0:
            return None
        if too_long == "error":
            raise self._error(*over[0].tolist())
        if too_long == "own-pack":
            self.sizes[over[:, 0]] = self.bounds
            return None
        kept = np.flatnonzero((self.sizes <= self.bounds).all(axis=1))
        self.sizes = self.sizes[kept]
        return kept

    def fewest(self) -> tuple[Small, int]:
        """The pack of every sample, int32 [n], and how many packs: as few as is found."""
        if len(self.bounds) == 1 and (self.sizes <= MOST_TOKENS).all():
            return fewest(self.sizes[:, 0].astype(np.int32), int(self.bounds[0]))
        # more room than the samples fill changes nothing, and the kernel's memory grows with it
        bounds = np.minimum(self.bounds, np.maximum(self.sizes.sum(axis=0), 1))
        tried = [kernels.best_fit(order, self.sizes, bounds) for order in self._orders(bounds)]
        return min(tried, key=lambda packed: packed[1])

    def _orders(self, bounds: Integers) -> Sequence[Small]:
        """By falling length; and by what a sample takes most of, as a part of its bound."""
        shares = (self.sizes / np.maximum(bounds, 1)).max(axis=1)
        keys = (self.sizes[:, 0], shares) if len(bounds) > 1 else (self.sizes[:, 0],)
        return [np.argsort(-key, kind="stable").astype(np.int32) for key in keys]

    def _error(self, position: int, column: int) -> TooLongError:
        unit = self._units[column]
        if unit == "cost" and self._costs is not None and self._max_cost is not None:
            cost = float(self._costs[position])
            return TooLongError(position, unit, cost, self._max_cost, "max_cost=")
        size, bound = int(self.sizes[position, column]), int(self.bounds[column])
        remedy = "max_tokens=" if column == 0 else f'limits["{unit}"]'
        return TooLongError(position, unit, size, bound, remedy)
