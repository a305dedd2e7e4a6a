"""Compiling the loops of packing before time counts."""

from __future__ import annotations

from typing import get_args

import numpy as np

from flowengine.schedule import kernels
from flowengine.schedule.balancing import balance
from flowengine.schedule.step import Sync, plan_step
from flowengine.schedule.stream import StreamPacker

LENGTHS = np.array([3, 3, 2, 2, 2], np.int64)


def warm_balance() -> None:
    """The same for what `balance` calls, and `pack`."""
    sizes = {"images": np.ones(5, np.int64)}
    costs = LENGTHS.astype(np.float64)
    balance(LENGTHS, costs, max_tokens=6, sizes=sizes, limits={"images": 2})
    balance(LENGTHS, costs, max_tokens=6)
    kernels.look_ahead(np.arange(5, dtype=np.int32), LENGTHS.astype(np.int32), 6, 2, 6)
    kernels.split(np.zeros(3, np.int32), np.ones(3), 1, 2)


def warm_stream() -> None:
    """The same for what `StreamPacker` calls."""
    for limits in (None, {"images": 2}):
        stream = StreamPacker(max_tokens=6, window=2, limits=limits)
        for number, length in enumerate(LENGTHS.tolist()):
            stream.push(number, length)
        stream.flush()


def warm() -> None:
    """Compiles the loops, or loads them from the disk: once per process, before time counts."""
    warm_balance()
    for sync in get_args(Sync):
        plan_step(LENGTHS, max_tokens=6, replicas=2, linear=1.0, quadratic=0.0, sync=sync)
    warm_stream()
