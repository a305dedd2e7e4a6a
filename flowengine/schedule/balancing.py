"""Packs of nearly equal cost out of one step's samples.

A pure function, with results like those of `pack`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowengine.schedule import kernels
from flowengine.schedule.lengths import Integers, TooLong, check_policy, integers
from flowengine.schedule.limits import Limits

REFINEMENT_BUDGET = 2**26
"""Exchanges of samples that one call of `balance` weighs at most: 0.1 s on one core."""


def balance(
    lengths: ArrayLike,
    costs: NDArray[np.float64],
    *,
    max_tokens: int,
    min_packs: int = 1,
    max_cost: float | None = None,
    sizes: Mapping[str, ArrayLike] | None = None,
    limits: Mapping[str, int] | None = None,
    too_long: TooLong = "error",
) -> tuple[Integers, Integers]:
    """Packs of nearly equal cost: as few as `pack` finds, or `min_packs` if more.

    lengths: tokens per sample, integers [n]. costs: at least 0, float64 [n].
    min_packs: met unless there are fewer samples.
    max_cost: the most a pack costs, to one part in 2**40 for each of its samples.
    sizes, limits: what else a sample has, integers [n] by name, and how much of it a pack holds.
    too_long: of a sample that exceeds a limit: "error", or "own-pack" for a pack of its own.
    """
    check_policy(too_long, known=("error", "own-pack"))
    count = len(integers(lengths))
    if costs.shape != (count,) or not (costs >= 0).all():
        raise ValueError(
            f"pack: costs are {costs.dtype} of shape {costs.shape} for {count} samples; "
            "expected one per sample, at least 0"
        )
    several = Limits(
        lengths,
        max_tokens=max_tokens,
        sizes=sizes or {},
        limits=limits or {},
        costs=costs,
        max_cost=max_cost,
    )
    several.confine(too_long)
    filled, least = several.fewest()
    num_packs = max(least, min(min_packs, count))
    dearest_first = np.argsort(-costs, kind="stable").astype(np.int32)
    held, bounds = several.sizes, several.bounds
    pack_of, found_room = kernels.spread(dearest_first, costs, held, bounds, num_packs)
    if not found_room:
        pack_of = filled
        kernels.split(pack_of, costs, least, num_packs)
    if num_packs > 1:
        kernels.refine(pack_of, costs, held, bounds, num_packs, REFINEMENT_BUDGET)
    ids, offsets = kernels.group(pack_of, num_packs)
    return ids, offsets
