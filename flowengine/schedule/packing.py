"""Which samples share a pack.

`pack` fills as few packs as it can; `balance` makes packs of nearly equal cost out of one step's
samples. Both are pure functions: equal arguments give equal packs, on every machine. A result is
(ids, offsets), int64: pack k holds samples ids[offsets[k]:offsets[k + 1]] in ascending order, and
the packs come in the order of their first samples.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from flowengine.errors import FlowError
from flowengine.schedule import kernels
from flowengine.schedule.kernels import Floats, Integers

REFINEMENT_BUDGET = 2**26
"""Exchanges of samples that one call of `balance` weighs at most: 0.1 s on one core."""


class TooLongError(FlowError, ValueError):
    """A sample does not fit an empty pack.

    position: its index in the lengths given. unit: what there is too much of, e.g. "tokens".
    size: how many the sample has. limit: how many a pack holds. remedy: the argument to raise.
    """

    def __init__(self, position: int, unit: str, size: int, limit: int, remedy: str) -> None:
        super().__init__(position, unit, size, limit, remedy)
        self.position = position
        self.unit = unit
        self.size = size
        self.limit = limit
        self.remedy = remedy

    def __str__(self) -> str:
        return self.message(sample=self.position)

    def message(self, *, sample: int) -> str:
        """What to tell the user, with the sample called by this number."""
        return (
            f"pack: sample {sample} has {self.size} {self.unit}, a pack holds {self.limit}; "
            f"raise {self.remedy}"
        )


def pack(lengths: ArrayLike, *, max_tokens: int) -> tuple[Integers, Integers]:
    """Packs of at most `max_tokens`, few of them: best fit decreasing.

    lengths: tokens per sample, integers [n]; a NumPy array or an Arrow column.
    """
    sizes = _integers(lengths)[:, np.newaxis]
    limits = np.array([max_tokens], np.int64)
    _check_fit(sizes, limits, media=())
    return _group(*_best_fit(sizes, limits))


def balance(
    lengths: ArrayLike,
    costs: Floats,
    *,
    max_tokens: int,
    min_packs: int = 1,
    rows: Mapping[str, ArrayLike] | None = None,
    max_rows: Mapping[str, int] | None = None,
) -> tuple[Integers, Integers]:
    """Packs of nearly equal cost: as few as best fit decreasing finds, or `min_packs` if more.

    lengths: tokens per sample, integers [n]. costs: at least 0, float64 [n].
    min_packs: met unless there are fewer samples.
    rows, max_rows: feature rows per sample and modality, integers [n], and how many a pack holds.
    """
    rows, max_rows = rows or {}, max_rows or {}
    if missing := max_rows.keys() - rows.keys():
        raise ValueError(f"pack: max_rows has {sorted(missing)}, rows has {sorted(rows)}")
    columns = [lengths, *(rows[name] for name in max_rows)]
    sizes = np.stack([_integers(column) for column in columns], axis=1)
    limits = np.array([max_tokens, *max_rows.values()], np.int64)
    if costs.shape != (len(sizes),) or not (costs >= 0).all():
        raise ValueError(
            f"pack: costs are of shape {costs.shape} for {len(sizes)} samples; "
            "expected one per sample, at least 0"
        )
    _check_fit(sizes, limits, media=tuple(max_rows))
    fewest, least = _best_fit(sizes, limits)
    num_packs = max(least, min(min_packs, len(sizes)))
    dearest_first = np.argsort(-costs, kind="stable")
    pack_of, found_room = kernels.spread(dearest_first, costs, sizes, limits, num_packs)
    if not found_room:
        pack_of = fewest
        kernels.split(pack_of, costs, least, num_packs)
    if num_packs > 1:
        kernels.refine(pack_of, costs, sizes, limits, num_packs, REFINEMENT_BUDGET)
    return _group(pack_of, num_packs)


def warm() -> None:
    """Compiles the loops, or loads them from the disk: once per process, before time counts."""
    lengths = np.array([3, 2, 2], np.int64)
    pack(lengths, max_tokens=4)
    balance(lengths, lengths.astype(np.float64), max_tokens=4)
    kernels.split(np.zeros(3, np.int64), np.ones(3), 1, 2)


def _integers(lengths: ArrayLike) -> Integers:
    array = np.asarray(lengths)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"pack: lengths are {array.dtype} of shape {array.shape}; expected integers [n], "
            "without nulls"
        )
    array = array.astype(np.int64)
    position = int(array.argmin())
    if array[position] < 0:
        raise ValueError(
            f"pack: sample {position} has length {array[position]}; expected 0 or more"
        )
    return array


def _check_fit(sizes: Integers, limits: Integers, *, media: tuple[str, ...]) -> None:
    over = np.argwhere(sizes > limits)
    if len(over) == 0:
        return
    position, column = over[0].tolist()
    unit, remedy = "tokens", "max_tokens="
    if column > 0:
        unit, remedy = f"{media[column - 1]} rows", f'max_rows["{media[column - 1]}"]'
    raise TooLongError(position, unit, int(sizes[position, column]), int(limits[column]), remedy)


def _best_fit(sizes: Integers, limits: Integers) -> tuple[Integers, int]:
    longest_first = np.argsort(-sizes[:, 0], kind="stable")
    # more room than the step fills changes nothing, and the kernel's memory grows with the limit
    limits = np.minimum(limits, sizes.sum(axis=0))
    pack_of, num_packs = kernels.best_fit(longest_first, sizes, limits)
    return pack_of, int(num_packs)


def _group(pack_of: Integers, num_packs: int) -> tuple[Integers, Integers]:
    ids, offsets = kernels.group(pack_of, num_packs)
    return ids, offsets
