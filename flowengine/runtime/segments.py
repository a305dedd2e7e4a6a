"""The shared memory of a run: one segment per worker, made before any worker starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowengine.pool import Segment
from flowengine.runtime.topology import Topology
from flowengine.shortage import naming_shortages

EXCHANGE_BYTES = 2**34
"""Address space, not memory, for the gradients that replicas hold for each other."""


def make_segments(topology: Topology) -> dict[int, Segment]:
    """Segments by worker: as large as the worker's share of the pool in all tiers; for replicas
    that train with an upper half for their gradients (see Pool.exchange)."""
    with _all_or_none() as segments:
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
    with _all_or_none() as disks:
        for worker in topology.workers:
            disks[worker.index] = Segment.on_disk(worker.limit + worker.disk_limit, run_dir)
    return disks


@contextmanager
def _all_or_none() -> Iterator[dict[int, Segment]]:
    """Segments to be; those made so far are closed if one cannot be."""
    segments: dict[int, Segment] = {}
    try:
        with naming_shortages("the run's shared memory cannot be made"):
            yield segments
    except BaseException:
        for segment in segments.values():
            segment.close()
        raise
