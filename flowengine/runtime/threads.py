"""How many torch threads a worker gets, so that two cores are two cores."""

from __future__ import annotations

import os

from flowengine.api import Trainable
from flowengine.runtime.topology import Topology, WorkerSpec


def computes(worker: WorkerSpec) -> bool:
    """Whether the worker's time goes into torch's kernels."""
    return isinstance(worker.stage.what, Trainable)


def threads_of(worker: WorkerSpec, topology: Topology) -> int:
    """Threads for this worker: what a plan gave its stage, else an even part of the cores."""
    if not computes(worker):
        return 1
    return worker.stage.threads or threads_per_worker(topology)


def threads_per_worker(topology: Topology) -> int:
    """Threads for each worker that computes: the cores, evenly, and at least one.

    The inline runtime takes the same number, because it is part of what makes results equal to the
    bit: kernels split their sums by threads.
    """
    computing = sum(1 for worker in topology.workers if computes(worker))
    return max(1, len(os.sched_getaffinity(0)) // max(1, computing))
