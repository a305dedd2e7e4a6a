"""The compiled loops of packing.

n samples, P packs. A sample has a length in tokens (lengths: int32 [n]) or, where a pack has
several limits, one size per limit, tokens first (sizes: int64 [n, limits], limits: int64 [limits]).
`pack_of` [n] is the pack of every sample. Every sample fits an empty pack: the caller has checked
it, a kernel does not.

Sums are taken in a fixed order and no tie is left to chance, so that a result depends on the
arguments alone.

Compiled code is kept in __pycache__, and numba compiles a kernel again when its own file changes,
not when a function that it calls from another file does. After a change to bitmap.py, remove
flowengine/schedule/kernels/__pycache__.
"""

from flowengine.schedule.kernels.balance import refine, split, spread
from flowengine.schedule.kernels.best_fit import best_fit, best_fit_decreasing
from flowengine.schedule.kernels.order import group, longest_first, lower_bound
from flowengine.schedule.kernels.step import deal, fill_costly_slots, level, sort_packs
from flowengine.schedule.kernels.window import ROWS, look_ahead, take_full
from flowengine.schedule.kernels.window_limits import take_limited

__all__ = [
    "ROWS",
    "best_fit",
    "best_fit_decreasing",
    "deal",
    "fill_costly_slots",
    "group",
    "level",
    "longest_first",
    "look_ahead",
    "lower_bound",
    "refine",
    "sort_packs",
    "split",
    "spread",
    "take_full",
    "take_limited",
]
