"""Packs of nearly equal cost: costs: float64 [n], of every sample."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from flowengine.schedule.kernels.best_fit import has_room

Integers = NDArray[np.int64]
Small = NDArray[np.int32]
Floats = NDArray[np.float64]

WORTHWHILE = 1e-9
"""The least part of a pack's cost that an exchange must save; less than that is rounding."""

EVEN = 1e-3
"""Packs are even when the costliest is above the mean by no more than this part of it."""


@njit(cache=True)
def spread(
    order: Small,
    costs: Floats,
    sizes: Integers,
    limits: Integers,
    num_packs: int,
) -> tuple[Small, bool]:
    """Every sample, in this order, to the cheapest pack with room; and whether all found room.

    The first samples open one pack each; samples not in the order get none (-1). n P in all.
    """
    pack_of = np.full(len(costs), -1, np.int32)
    cost = np.zeros(num_packs)
    room = np.empty((num_packs, len(limits)), np.int64)
    room[:] = limits
    for rank, sample in enumerate(order):
        pack = rank if rank < num_packs else -1
        if pack < 0:
            for other in range(num_packs):
                if (pack < 0 or cost[other] < cost[pack]) and has_room(room[other], sizes[sample]):
                    pack = other
        if pack < 0:
            return pack_of, False
        pack_of[sample] = pack
        cost[pack] += costs[sample]
        room[pack] -= sizes[sample]
    return pack_of, True


@njit(cache=True)
def split(pack_of: Small, costs: Floats, num_packs: int, wanted: int) -> None:
    """More packs, up to `wanted`: each takes the costliest sample of the costliest pack of two or
    more. Changes `pack_of`."""
    cost = np.zeros(wanted)
    members = np.zeros(wanted, np.int64)
    for sample, pack in enumerate(pack_of):
        cost[pack] += costs[sample]
        members[pack] += 1
    for new in range(num_packs, wanted):
        costliest = -1
        for pack in range(new):
            if members[pack] > 1 and (costliest < 0 or cost[pack] > cost[costliest]):
                costliest = pack
        chosen = -1
        for sample, pack in enumerate(pack_of):
            if pack == costliest and (chosen < 0 or costs[sample] > costs[chosen]):
                chosen = sample
        pack_of[chosen] = new
        cost[costliest] -= costs[chosen]
        cost[new] += costs[chosen]
        members[costliest] -= 1
        members[new] += 1


@njit(cache=True)
def refine(
    pack_of: Small,
    costs: Floats,
    sizes: Integers,
    limits: Integers,
    num_packs: int,
    budget: int,
) -> None:
    """Relieves the costliest pack, again and again, by the best move or swap with another pack.

    Ends when the packs are even, when no exchange leaves both packs cheaper than the costliest was,
    or when the next round would weigh more exchanges than the budget has left. A round weighs n + P
    for each of the pack's samples. Changes `pack_of`, leaves no pack empty.
    """
    cost = np.zeros(num_packs)
    room = np.empty((num_packs, len(limits)), np.int64)
    room[:] = limits
    for sample, pack in enumerate(pack_of):
        cost[pack] += costs[sample]
        room[pack] -= sizes[sample]
    even = cost.mean() * (1.0 + EVEN)
    while True:
        costliest = int(np.argmax(cost))
        members = int(np.count_nonzero(pack_of == costliest))
        budget -= members * (len(pack_of) + num_packs)
        if budget < 0 or cost[costliest] <= even:
            return
        given, taken, partner = _best_exchange(costliest, pack_of, costs, sizes, cost, room)
        if given < 0:
            return
        for sample, source, target in ((given, costliest, partner), (taken, partner, costliest)):
            if sample >= 0:
                pack_of[sample] = target
                cost[source] -= costs[sample]
                cost[target] += costs[sample]
                room[source] += sizes[sample]
                room[target] -= sizes[sample]


@njit(cache=True)
def _best_exchange(
    costliest: int,
    pack_of: Small,
    costs: Floats,
    sizes: Integers,
    cost: Floats,
    room: Integers,
) -> tuple[int, int, int]:
    """The sample to give, the one to take for it (-1: none), and the other pack; -1 first if no
    exchange pays."""
    best = cost[costliest] * (1.0 - WORTHWHILE)
    given, taken, partner = -1, -1, -1
    for sample in range(len(pack_of)):
        if pack_of[sample] != costliest:
            continue
        for pack in range(len(cost)):
            worst = max(cost[pack] + costs[sample], cost[costliest] - costs[sample])
            if worst < best and pack != costliest and has_room(room[pack], sizes[sample]):
                best, given, taken, partner = worst, sample, -1, pack
        for other in range(len(pack_of)):
            pack = pack_of[other]
            saved = costs[sample] - costs[other]
            worst = max(cost[pack] + saved, cost[costliest] - saved)
            if (
                worst < best
                and pack != costliest
                and has_room(room[pack], sizes[sample] - sizes[other])
                and has_room(room[costliest], sizes[other] - sizes[sample])
            ):
                best, given, taken, partner = worst, sample, other, pack
    return given, taken, partner
