"""The compiled loops of packing.

n samples, P packs. A sample has a cost (costs: float64 [n]) and one size per limit of a pack,
tokens first (sizes: int64 [n, limits], limits: int64 [limits]). `order` permutes the samples,
`pack_of` [n] is the pack of every sample. Every sample fits an empty pack: the caller has
checked it, a kernel does not.

Sums are taken in a fixed order and no tie is left to chance, so that a result depends on the
arguments alone.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

WORTHWHILE = 1e-9
"""The least part of a pack's cost that an exchange must save; less than that is rounding."""

EVEN = 1e-3
"""Packs are even when the costliest is above the mean by no more than this part of it."""


@njit(cache=True)
def best_fit(order: Integers, sizes: Integers, limits: Integers) -> tuple[Integers, int]:
    """Every sample, in this order, to the fullest pack with room; and how many packs there are.

    The packs with equally many free tokens form a list, and a tree finds the next list that is not
    empty: n log limits[0] in all where tokens alone are limited.
    """
    num_samples, num_sizes = sizes.shape
    pack_of = np.empty(num_samples, np.int64)
    room = np.empty((num_samples, num_sizes), np.int64)
    first = np.full(limits[0] + 1, -1, np.int64)
    following = np.full(num_samples, -1, np.int64)
    leaves = 1
    while leaves <= limits[0]:
        leaves *= 2
    tree = np.zeros(2 * leaves, np.bool_)
    num_packs = 0
    for sample in order:
        pack = _take_fullest(first, following, tree, room, sizes[sample])
        if pack < 0:
            pack = num_packs
            num_packs += 1
            room[pack] = limits
        room[pack] -= sizes[sample]
        pack_of[sample] = pack
        free = room[pack, 0]
        following[pack] = first[free]
        first[free] = pack
        _set(tree, free)
    return pack_of, num_packs


@njit(cache=True)
def spread(
    order: Integers,
    costs: Floats,
    sizes: Integers,
    limits: Integers,
    num_packs: int,
) -> tuple[Integers, bool]:
    """Every sample, in this order, to the cheapest pack with room; and whether all found room.

    The first samples open one pack each. n P in all.
    """
    pack_of = np.full(len(order), -1, np.int64)
    cost = np.zeros(num_packs)
    room = np.empty((num_packs, len(limits)), np.int64)
    room[:] = limits
    for rank, sample in enumerate(order):
        pack = rank if rank < num_packs else -1
        if pack < 0:
            for other in range(num_packs):
                if (pack < 0 or cost[other] < cost[pack]) and _has_room(room[other], sizes[sample]):
                    pack = other
        if pack < 0:
            return pack_of, False
        pack_of[sample] = pack
        cost[pack] += costs[sample]
        room[pack] -= sizes[sample]
    return pack_of, True


@njit(cache=True)
def split(pack_of: Integers, costs: Floats, num_packs: int, wanted: int) -> None:
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
    pack_of: Integers,
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
def group(pack_of: Integers, num_packs: int) -> tuple[Integers, Integers]:
    """The samples of every pack in ascending order, and where each pack begins and the last ends.

    The packs come in the order of their first samples. None is empty.
    """
    rank = np.full(num_packs, -1, np.int64)
    offsets = np.zeros(num_packs + 1, np.int64)
    seen = 0
    for pack in pack_of:
        if rank[pack] < 0:
            rank[pack] = seen
            seen += 1
        offsets[rank[pack] + 1] += 1
    offsets = np.cumsum(offsets)
    place = offsets.copy()
    ids = np.empty(len(pack_of), np.int64)
    for sample, pack in enumerate(pack_of):
        ids[place[rank[pack]]] = sample
        place[rank[pack]] += 1
    return ids, offsets


@njit(cache=True)
def _has_room(room: Integers, size: Integers) -> bool:
    for column in range(len(room)):  # noqa: SIM110 (all() would make a generator, or an array)
        if room[column] < size[column]:
            return False
    return True


@njit(cache=True)
def _best_exchange(
    costliest: int,
    pack_of: Integers,
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
            if worst < best and pack != costliest and _has_room(room[pack], sizes[sample]):
                best, given, taken, partner = worst, sample, -1, pack
        for other in range(len(pack_of)):
            pack = pack_of[other]
            saved = costs[sample] - costs[other]
            worst = max(cost[pack] + saved, cost[costliest] - saved)
            if (
                worst < best
                and pack != costliest
                and _has_room(room[pack], sizes[sample] - sizes[other])
                and _has_room(room[costliest], sizes[other] - sizes[sample])
            ):
                best, given, taken, partner = worst, sample, other, pack
    return given, taken, partner


@njit(cache=True)
def _take_fullest(
    first: Integers,
    following: Integers,
    tree: NDArray[np.bool_],
    room: Integers,
    size: Integers,
) -> int:
    """The fullest pack with room for this size, taken off its list; -1 if there is none."""
    free = _next_set(tree, size[0])
    while free >= 0:
        before, pack = -1, first[free]
        while pack >= 0 and not _has_room(room[pack], size):
            before, pack = pack, following[pack]
        if pack >= 0:
            if before >= 0:
                following[before] = following[pack]
            else:
                first[free] = following[pack]
            if first[free] < 0:
                _clear(tree, free)
            return int(pack)
        free = _next_set(tree, free + 1)
    return -1


@njit(cache=True)
def _next_set(tree: NDArray[np.bool_], start: int) -> int:
    """The first set leaf from `start` on; -1 if there is none."""
    leaves = len(tree) // 2
    if start >= leaves:
        return -1
    place = leaves + start
    while not tree[place]:
        while place & 1:
            place >>= 1
        if place == 0:
            return -1
        place += 1
    while place < leaves:
        place = 2 * place + (not tree[2 * place])
    return place - leaves


@njit(cache=True)
def _set(tree: NDArray[np.bool_], leaf: int) -> None:
    place = len(tree) // 2 + leaf
    while place > 0 and not tree[place]:
        tree[place] = True
        place >>= 1


@njit(cache=True)
def _clear(tree: NDArray[np.bool_], leaf: int) -> None:
    place = len(tree) // 2 + leaf
    tree[place] = False
    while place > 1 and not tree[place ^ 1]:
        place >>= 1
        tree[place] = False
