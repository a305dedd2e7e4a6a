"""One step's samples over microbatches and data-parallel replicas.

A pure function: equal arguments give equal packs, on every machine.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowengine.schedule import kernels
from flowengine.schedule.fewest import fewest
from flowengine.schedule.lengths import Small, TooLong, fitting, integers

Sync = Literal["lockstep", "accumulate"]

ROUNDS = 2
"""How often packs are sorted into slots and levelled."""

BUDGET = 2**27
"""Exchanges of samples that one call weighs at most: 0.3 s on one core."""


def plan_step(
    lengths: ArrayLike,
    *,
    max_tokens: int,
    replicas: int,
    linear: float,
    quadratic: float,
    sync: Sync = "lockstep",
    too_long: TooLong = "error",
) -> list[list[list[int]]]:
    """For every microbatch slot, the samples of every replica: slots of `replicas` lists of ids.

    lengths: tokens per sample, integers [n].
    linear, quadratic: a sample costs linear * length + quadratic * length**2.
    sync: what replicas wait for. In "lockstep", for each other's pack in every slot, so the packs
        of one slot cost the same; with "accumulate", once at the step's end, so the replicas' sums
        do. Use "lockstep" where every microbatch has collectives (FSDP, tensor parallelism).
    too_long: what becomes of a sample of more than `max_tokens`, as for `pack`.

    There are as few slots as `pack` needs packs for; a pack may be empty where a step has too few
    samples. Ids ascend within a pack; the costliest slots come first.
    """
    if replicas < 1:
        raise ValueError(f"pack: replicas is {replicas}; expected at least 1")
    if sync not in get_args(Sync):
        raise ValueError(f'pack: sync is "{sync}"; expected "lockstep" or "accumulate"')
    if not (linear >= 0 and quadratic >= 0 and 0 < linear + quadratic < np.inf):
        raise ValueError(
            f"pack: linear is {linear} and quadratic is {quadratic}; expected numbers of at least "
            "0, not both 0"
        )
    tokens = integers(lengths)
    sizes, kept = fitting(tokens, max_tokens=max_tokens, too_long=too_long)
    tokens = tokens if kept is None else tokens[kept]
    if len(tokens) == 0:
        return []
    costs = tokens * (linear + quadratic * tokens.astype(np.float64))
    pack_of, slots = _level(sizes, costs, max_tokens, replicas, sync)
    slots_of: list[list[list[int]]] = [[[] for _ in range(replicas)] for _ in range(slots)]
    ids = range(len(tokens)) if kept is None else kept.tolist()
    for sample, pack in zip(ids, pack_of.tolist(), strict=True):
        slots_of[pack // replicas][pack % replicas].append(sample)
    return slots_of


def _level(
    sizes: Small, costs: NDArray[np.float64], max_tokens: int, replicas: int, sync: Sync
) -> tuple[Small, int]:
    filled, least = fewest(sizes, max_tokens)
    slots = -(-least // replicas)
    num_packs = slots * replicas
    pack_of = _spread(sizes, costs, max_tokens, slots, replicas)
    if pack_of is None:
        pack_of = filled
        kernels.split(pack_of, costs, least, min(num_packs, len(sizes)))
    slot_of = (np.arange(num_packs) // replicas).astype(np.int32)
    own = np.arange(num_packs, dtype=np.int32)
    for _ in range(ROUNDS):
        kernels.sort_packs(pack_of, costs, num_packs)
        kernels.level(pack_of, sizes, costs, max_tokens, own, slot_of, BUDGET)
    if sync == "accumulate":
        kernels.deal(pack_of, costs, slots, replicas)
        replica_of = np.tile(np.arange(replicas, dtype=np.int32), slots)
        one = np.zeros(replicas, np.int32)
        kernels.level(pack_of, sizes, costs, max_tokens, replica_of, one, BUDGET)
    return pack_of, slots


def _spread(
    sizes: Small, costs: NDArray[np.float64], max_tokens: int, slots: int, replicas: int
) -> Small | None:
    """Every sample to a pack, costliest first; None where one found no room."""
    order = np.argsort(-costs, kind="stable").astype(np.int32)
    pack_of, done = kernels.fill_costly_slots(order, sizes, costs, max_tokens, slots, replicas)
    rest = order[pack_of[order] < 0]
    if len(rest) == 0:
        return pack_of
    limits = np.array([max_tokens], np.int64)
    columns = sizes[:, np.newaxis].astype(np.int64)
    others, found_room = kernels.spread(rest, costs, columns, limits, (slots - done) * replicas)
    if not found_room:
        return None
    pack_of[rest] = others[rest] + done * replicas
    return pack_of
