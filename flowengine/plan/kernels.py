"""The allocator's search, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def choose(
    rates: NDArray[np.float64],
    needs: NDArray[np.int64],
    starts: NDArray[np.int64],
    devices: int,
) -> NDArray[np.int64]:
    """The best candidate of every stage, counted within the stage; all -1 if nothing fits.

    rates: above 0, descending within a stage; needs: devices, at least 1. Stage s has candidates
    starts[s] to starts[s + 1]; stage 0 is the objective. Depth first; a branch ends where it is
    slower than the best so far, or where the rest would not fit.
    """
    stages = len(starts) - 1
    rest = np.zeros(stages + 1, np.int64)
    for stage in range(stages - 1, -1, -1):
        rest[stage] = rest[stage + 1] + needs[starts[stage] : starts[stage + 1]].min()
    best = np.full(stages, -1, np.int64)
    best_rate, best_mismatch, best_needs = 0.0, np.inf, devices + 1
    at = np.full(stages, -1, np.int64)
    used = np.zeros(stages + 1, np.int64)
    mismatch = np.zeros(stages + 1, np.float64)
    slowest = np.full(stages + 1, np.inf)
    depth = 0
    while depth >= 0:
        at[depth] += 1
        place = starts[depth] + at[depth]
        if place >= starts[depth + 1] or rates[place] < best_rate:
            at[depth] = -1
            depth -= 1
            continue
        used[depth + 1] = used[depth] + needs[place]
        if used[depth + 1] + rest[depth + 1] > devices:
            continue
        slowest[depth + 1] = min(slowest[depth], rates[place])
        mismatch[depth + 1] = 0.0
        if depth > 0:
            own = rates[starts[0] + at[0]]
            mismatch[depth + 1] = mismatch[depth] + abs(rates[place] - own) / max(rates[place], own)
        if depth + 1 < stages:
            depth += 1
            continue
        rate, gap, need = slowest[stages], mismatch[stages], used[stages]
        better = rate > best_rate
        if rate == best_rate:
            better = gap < best_mismatch or (gap == best_mismatch and need < best_needs)
        if better:
            best_rate, best_mismatch, best_needs = rate, gap, need
            best[:] = at
    return best
