"""Packs of nearly equal cost out of one step's samples.

A pure function, with results like those of `pack`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowengine.schedule import kernels
from flowengine.schedule.lengths import (
    MOST_TOKENS,
    Integers,
    Small,
    TooLong,
    TooLongError,
    check_policy,
    integers,
)
from flowengine.schedule.packing import fewest

REFINEMENT_BUDGET = 2**26
"""Exchanges of samples that one call of `balance` weighs at most: 0.1 s on one core."""


def balance(
    lengths: ArrayLike,
    costs: NDArray[np.float64],
    *,
    max_tokens: int,
    min_packs: int = 1,
    rows: Mapping[str, ArrayLike] | None = None,
    max_rows: Mapping[str, int] | None = None,
    too_long: TooLong = "error",
) -> tuple[Integers, Integers]:
    """Packs of nearly equal cost: as few as `pack` finds, or `min_packs` if more.

    With max_rows, as few as best fit decreasing finds.

    lengths: tokens per sample, integers [n]. costs: at least 0, float64 [n].
    min_packs: met unless there are fewer samples.
    rows, max_rows: feature rows per sample and modality, integers [n], and how many a pack holds.
    too_long: "error", or "own-pack" for a pack of its own.
    """
    rows, max_rows = rows or {}, max_rows or {}
    if missing := max_rows.keys() - rows.keys():
        raise ValueError(f"pack: max_rows has {sorted(missing)}, rows has {sorted(rows)}")
    columns = [lengths, *(rows[name] for name in max_rows)]
    sizes = np.stack([integers(column) for column in columns], axis=1, dtype=np.int64)
    limits = np.array([max_tokens, *max_rows.values()], np.int64)
    if costs.shape != (len(sizes),) or not (costs >= 0).all():
        raise ValueError(
            f"pack: costs are {costs.dtype} of shape {costs.shape} for {len(sizes)} samples; "
            "expected one per sample, at least 0"
        )
    _confine(sizes, limits, media=tuple(max_rows), too_long=too_long)
    filled, least = _fewest(sizes, limits)
    num_packs = max(least, min(min_packs, len(sizes)))
    dearest_first = np.argsort(-costs, kind="stable").astype(np.int32)
    pack_of, found_room = kernels.spread(dearest_first, costs, sizes, limits, num_packs)
    if not found_room:
        pack_of = filled
        kernels.split(pack_of, costs, least, num_packs)
    if num_packs > 1:
        kernels.refine(pack_of, costs, sizes, limits, num_packs, REFINEMENT_BUDGET)
    ids, offsets = kernels.group(pack_of, num_packs)
    return ids, offsets


def _confine(
    sizes: Integers, limits: Integers, *, media: tuple[str, ...], too_long: TooLong
) -> None:
    """Gives a sample that exceeds a limit all the room of a pack, or raises."""
    check_policy(too_long, known=("error", "own-pack"))
    over = np.argwhere(sizes > limits)
    if len(over) == 0:
        return
    if too_long == "own-pack":
        sizes[over[:, 0]] = limits
        return
    position, column = over[0].tolist()
    unit, remedy = "tokens", "max_tokens="
    if column > 0:
        unit, remedy = f"{media[column - 1]} rows", f'max_rows["{media[column - 1]}"]'
    raise TooLongError(position, unit, int(sizes[position, column]), int(limits[column]), remedy)


def _fewest(sizes: Integers, limits: Integers) -> tuple[Small, int]:
    if len(limits) == 1 and (sizes <= MOST_TOKENS).all():
        return fewest(sizes[:, 0].astype(np.int32), int(limits[0]))
    longest_first = np.argsort(-sizes[:, 0], kind="stable").astype(np.int32)
    # more room than the step fills changes nothing, and the kernel's memory grows with the limit
    limits = np.minimum(limits, sizes.sum(axis=0))
    pack_of, num_packs = kernels.best_fit(longest_first, sizes, limits)
    return pack_of, int(num_packs)
