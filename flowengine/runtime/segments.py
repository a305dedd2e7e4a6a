"""The shared memory of a run: one segment per worker, made before any worker starts."""

from __future__ import annotations

from pathlib import Path

from flowengine.pool import Segment
from flowengine.runtime.topology import Topology

EXCHANGE_BYTES = 2**34
"""Address space, not memory, for the gradients that replicas hold for each other."""


def make_segments(topology: Topology) -> dict[int, Segment]:
    """Segments by worker: as large as the worker's share of the pool in all tiers; for replicas
    that train with an upper half for their gradients (see Pool.exchange)."""
    segments = {}
    for worker in topology.workers:
        exchanges = worker.stage.trains and worker.stage.replicas > 1
        payloads = worker.limit + worker.disk_limit
        size = 2 * max(payloads, EXCHANGE_BYTES) if exchanges else payloads
        segments[worker.index] = Segment.create(size)
    return segments


def make_disks(topology: Topology, run_dir: Path) -> dict[int, Segment]:
    """The disk tier by worker, in files of `run_dir` that have no name; empty without one."""
    if not any(worker.disk_limit for worker in topology.workers):
        return {}
    run_dir.mkdir(parents=True, exist_ok=True)
    return {
        worker.index: Segment.on_disk(worker.limit + worker.disk_limit, run_dir)
        for worker in topology.workers
    }
