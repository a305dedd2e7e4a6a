"""How the pool's capacity is divided: who fills it, and how much each may fill.

Each worker allocates in its own part alone, so that nobody asks anybody for room. All parts
together are the capacity, which therefore bounds the payload bytes of the whole run.
"""

from __future__ import annotations

from flowengine.api import Objective, Packer
from flowengine.graph.description import StageSpec
from flowengine.graph.graph import Graph

DEFAULT_CAPACITY = 256 * 2**20
"""Bytes for the payloads of a graph without a pool."""

_PAGE = 4096


def share_bytes(graph: Graph, stage: StageSpec) -> int:
    """The bytes of payload that one worker of this stage may have in the pool at a time.

    The capacity is divided evenly over the workers that emit payloads; an objective, whose only
    payloads are long answers, counts for a sixteenth of a worker.
    """
    capacity = graph.joins[0].capacity if graph.joins else DEFAULT_CAPACITY
    return _share(graph, stage, capacity)


def disk_share_bytes(graph: Graph, stage: StageSpec) -> int:
    """The same for the pool's disk tier."""
    return _share(graph, stage, graph.joins[0].disk if graph.joins else 0)


def _share(graph: Graph, stage: StageSpec, capacity: int) -> int:
    total = _total(graph)
    if not total:
        return 0
    return capacity * _weight(graph, stage) // total // _PAGE * _PAGE


def capacity_for(graph: Graph, stage: StageSpec, *, share: int) -> int:
    """The least capacity of which this stage, which emits payloads, has at least `share` bytes."""
    pages = -(-share // _PAGE) * _PAGE
    return -(-pages * _total(graph) // _weight(graph, stage))


def _total(graph: Graph) -> int:
    return sum(_weight(graph, stage) * stage.ways for stage in graph.stages)


def _weight(graph: Graph, stage: StageSpec) -> int:
    if isinstance(stage.what, Packer) or not stage.signature.outputs:
        return 0
    if isinstance(stage.what, Objective):
        return 1 if any(e.stage == stage.name for s in graph.stages for e in s.producers) else 0
    return 16
