"""One step's samples over slots and replicas: pack slot * replicas + r is what replica r trains in
that slot.

In lock-step all replicas wait for the costliest pack of every slot. With accumulation they wait for
each other once, at the step's end. S slots, R replicas, P = S R packs.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Small = NDArray[np.int32]
Floats = NDArray[np.float64]

WORTHWHILE = 1e-7
"""The least part of the costliest unit's cost that an exchange must save."""

EVEN = 1e-5
"""A group is even when its costliest unit is above the mean by no more than this part of it."""


@njit(cache=True)
def fill_costly_slots(
    order: Small, lengths: Small, costs: Floats, max_tokens: int, slots: int, replicas: int
) -> tuple[Small, int]:
    """The pack of every sample that belongs to a slot of its own level (-1: not yet any), and how
    many slots those are. order: costliest first.

    While the costliest sample costs more than the mean pack, its slot costs at least as much
    whatever else it holds. So its packs take as much cost as they can: the longest samples.
    """
    pack_of = np.full(len(order), -1, np.int32)
    left = costs.sum()
    slot, first = 0, 0
    while slot < slots:
        while first < len(order) and pack_of[order[first]] >= 0:
            first += 1
        if first == len(order) or costs[order[first]] * (slots - slot) * replicas <= left:
            break
        level = costs[order[first]]
        for replica in range(replicas):
            room, cost = max_tokens, 0.0
            for rank in range(first, len(order)):
                sample = order[rank]
                if (
                    pack_of[sample] < 0
                    and lengths[sample] <= room
                    and cost + costs[sample] <= level
                ):
                    pack_of[sample] = slot * replicas + replica
                    room -= lengths[sample]
                    cost += costs[sample]
            left -= cost
        slot += 1
    return pack_of, slot


@njit(cache=True)
def sort_packs(pack_of: Small, costs: Floats, num_packs: int) -> None:
    """Numbers the packs by falling cost: no other grouping into slots waits less. Changes
    `pack_of`."""
    cost = np.zeros(num_packs)
    for sample, pack in enumerate(pack_of):
        cost[pack] += costs[sample]
    rank = np.empty(num_packs, np.int32)
    for place, pack in enumerate(np.argsort(-cost, kind="mergesort")):
        rank[pack] = place
    for sample in range(len(pack_of)):
        pack_of[sample] = rank[pack_of[sample]]


@njit(cache=True)
def deal(pack_of: Small, costs: Floats, slots: int, replicas: int) -> None:
    """In every slot, the costliest pack to the replica that has least so far. Changes `pack_of`,
    whose packs are in slots already; the costliest slots come first."""
    cost = np.zeros(slots * replicas)
    for sample, pack in enumerate(pack_of):
        cost[pack] += costs[sample]
    load = np.zeros(replicas)
    place = np.empty(slots * replicas, np.int32)
    for slot in range(slots):
        start = slot * replicas
        falling = np.argsort(-cost[start : start + replicas], kind="mergesort")
        rising = np.argsort(load, kind="mergesort")
        for rank in range(replicas):
            place[start + falling[rank]] = start + rising[rank]
            load[rising[rank]] += cost[start + falling[rank]]
    for sample in range(len(pack_of)):
        pack_of[sample] = place[pack_of[sample]]


@njit(cache=True)
def level(
    pack_of: Small,
    lengths: Small,
    costs: Floats,
    max_tokens: int,
    unit_of: Small,
    group_of: Small,
    budget: int,
) -> None:
    """Relieves the costliest unit of one group after another, by exchanging samples between packs.

    A unit is one pack or all packs of a replica: unit_of [P]. A group is what waits for its
    costliest unit: group_of [units], ascending. An exchange gives one or two samples for at most
    two; it leaves its own group's units below what the costliest was, and no unit of another group
    above that group's costliest. Changes `pack_of`.

    Ends when no exchange helps any group, or when `budget` exchanges have been weighed.
    """
    num_groups = group_of[-1] + 1
    load, room = _loads(pack_of, lengths, costs, max_tokens, unit_of, len(group_of))
    stuck = np.zeros(num_groups, np.bool_)
    while budget > 0:
        worst, target = _least_even(load, group_of, stuck)
        if worst < 0:
            return
        bound = _bounds(load, group_of, group_of[worst])
        members, offsets = _members(pack_of, len(unit_of))
        packs = (members, offsets, unit_of, group_of, load, room)
        exchange, weighed = _best_exchange(worst, target, bound, 1, lengths, costs, packs)
        budget -= weighed
        if exchange[0] < 0:
            exchange, weighed = _best_exchange(worst, target, bound, 2, lengths, costs, packs)
            budget -= weighed
        stuck[group_of[worst]] = exchange[0] < 0
        if exchange[0] >= 0:
            stuck[group_of[unit_of[exchange[4]]]] = False
            _apply(exchange, pack_of, lengths, costs, unit_of, load, room)


@njit(cache=True)
def _least_even(load: Floats, group_of: Small, stuck: NDArray[np.bool_]) -> tuple[int, float]:
    """The costliest unit of the group that waits longest, and that group's mean; -1 first if every
    group is even or stuck."""
    worst, most, target = -1, 0.0, 0.0
    start = 0
    for end in range(1, len(load) + 1):
        if end < len(load) and group_of[end] == group_of[start]:
            continue
        own = load[start:end]
        mean = own.mean()
        costliest = start + int(np.argmax(own))
        if not stuck[group_of[start]] and load[costliest] - mean > max(most, EVEN * mean):
            worst, most, target = costliest, load[costliest] - mean, mean
        start = end
    return worst, target


@njit(cache=True)
def _bounds(load: Floats, group_of: Small, group: int) -> Floats:
    """How much every unit may cost after an exchange with a unit of this group."""
    top = np.zeros(group_of[-1] + 1)
    for unit in range(len(load)):
        top[group_of[unit]] = max(top[group_of[unit]], load[unit])
    top[group] *= 1.0 - WORTHWHILE
    return top[group_of]


@njit(cache=True)
def _apply(
    exchange: tuple[int, int, int, int, int],
    pack_of: Small,
    lengths: Small,
    costs: Floats,
    unit_of: Small,
    load: Floats,
    room: Integers,
) -> None:
    giver, taker = pack_of[exchange[0]], exchange[4]
    for place in range(4):
        sample = exchange[place]
        if sample >= 0:
            source, goal = (giver, taker) if place < 2 else (taker, giver)
            pack_of[sample] = goal
            load[unit_of[source]] -= costs[sample]
            load[unit_of[goal]] += costs[sample]
            room[source] += lengths[sample]
            room[goal] -= lengths[sample]


@njit(cache=True)
def _best_exchange(
    worst: int,
    target: float,
    bound: Floats,
    width: int,
    lengths: Small,
    costs: Floats,
    packs: tuple[Integers, Integers, Small, Small, Floats, Integers],
) -> tuple[tuple[int, int, int, int, int], int]:
    """Two samples to give, two to take (-1: none), and the pack that takes part; and how many
    exchanges were weighed. -1 first if none is allowed.

    width: 1 gives one sample for at most one; 2 also two for one, and one for two.
    """
    members, offsets, unit_of, group_of, load, room = packs
    best, weighed = load[worst], 0
    exchange = (-1, -1, -1, -1, -1)
    for giver in range(len(unit_of)):
        if unit_of[giver] != worst:
            continue
        for taker in range(len(unit_of)):
            unit = unit_of[taker]
            if unit == worst:
                continue
            near = group_of[unit] == group_of[worst]
            for a in range(offsets[giver], offsets[giver + 1]):
                for b in range(a, offsets[giver + 1] if width == 2 else a + 1):
                    given_cost = costs[members[a]]
                    given_length = np.int64(lengths[members[a]])
                    if b > a:
                        given_cost += costs[members[b]]
                        given_length += lengths[members[b]]
                    for c in range(offsets[taker] - 1, offsets[taker + 1]):
                        alone = width == 1 or b > a or c < offsets[taker]
                        for d in range(c, c + 1 if alone else offsets[taker + 1]):
                            weighed += 1
                            saved, length = given_cost, given_length
                            if c >= offsets[taker]:
                                saved -= costs[members[c]]
                                length -= lengths[members[c]]
                            if d > c:
                                saved -= costs[members[d]]
                                length -= lengths[members[d]]
                            value = max(load[worst] - saved, target)
                            if near:
                                value = max(value, load[unit] + saved)
                            if (
                                value < best
                                and saved > 0.0
                                and load[unit] + saved <= bound[unit]
                                and load[worst] - saved <= bound[worst]
                                and length <= room[taker]
                                and -length <= room[giver]
                            ):
                                best = value
                                exchange = (
                                    members[a],
                                    members[b] if b > a else -1,
                                    members[c] if c >= offsets[taker] else -1,
                                    members[d] if d > c else -1,
                                    taker,
                                )
    return exchange, weighed


@njit(cache=True)
def _members(pack_of: Small, num_packs: int) -> tuple[Integers, Integers]:
    """The samples by pack, and where every pack begins and the last ends; packs may be empty."""
    offsets = np.zeros(num_packs + 1, np.int64)
    for pack in pack_of:
        offsets[pack + 1] += 1
    offsets = np.cumsum(offsets)
    place = offsets.copy()
    members = np.empty(len(pack_of), np.int64)
    for sample, pack in enumerate(pack_of):
        members[place[pack]] = sample
        place[pack] += 1
    return members, offsets


@njit(cache=True)
def _loads(
    pack_of: Small, lengths: Small, costs: Floats, max_tokens: int, unit_of: Small, num_units: int
) -> tuple[Floats, Integers]:
    load = np.zeros(num_units)
    room = np.full(len(unit_of), max_tokens, np.int64)
    for sample, pack in enumerate(pack_of):
        load[unit_of[pack]] += costs[sample]
        room[pack] -= lengths[sample]
    return load, room
