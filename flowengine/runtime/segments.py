"""The shared memory of a run: one segment per worker, made before any worker starts."""

from __future__ import annotations

from flowengine.pool import Segment
from flowengine.runtime.topology import Topology

EXCHANGE_BYTES = 2**34
"""Address space, not memory, for the gradients that replicas hold for each other."""


def make_segments(topology: Topology) -> dict[int, Segment]:
    """Segments by worker: as large as the worker's share of the pool, and for replicas that train
    with an upper half for their gradients (see Pool.exchange)."""
    segments = {}
    for worker in topology.workers:
        exchanges = worker.stage.trains and worker.stage.replicas > 1
        size = 2 * max(worker.limit, EXCHANGE_BYTES) if exchanges else worker.limit
        segments[worker.index] = Segment.create(size)
    return segments
