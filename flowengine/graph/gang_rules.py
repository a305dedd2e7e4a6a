"""Rules on gangs: who can be one, and what an encoder must have room for to feed one."""

from __future__ import annotations

from collections.abc import Iterator

from flowengine.api import Encoder, Objective, Packer, Trainable
from flowengine.graph.description import StageSpec
from flowengine.graph.dtype import is_half
from flowengine.graph.graph import Graph


def gangs_are_possible(graph: Graph) -> Iterator[str]:
    for stage in graph.stages:
        if stage.gang.size == 1:
            continue
        if not isinstance(stage.what, Trainable):
            yield f"{stage}: has gang={stage.gang} and no weights; use replicas= for more workers"
            continue
        if stage.replicas > 1:
            yield (
                f"{stage}: has replicas={stage.replicas} and gang={stage.gang}; expected one of "
                "them: the data ranks of a gang take packs in turn as replicas do"
            )
        ready = [s for s in graph.stages if isinstance(s.what, Packer) and s.what.when == "ready"]
        if ready:
            yield (
                f"{stage}: has gang={stage.gang}, but '{ready[0].name}' packs what is ready, and "
                'a gang begins a slot when all of its packs are there; use when="planned"'
            )
        if stage.gang.tensor > 1 and not _can_share(stage.what):
            yield (
                f"{stage}: has gang={stage.gang}, but {type(stage.what).__name__} has no "
                "tensor_plan(); define it, or use data ranks alone"
            )
        if isinstance(stage.what, Encoder) and stage.trains and graph.staleness:
            yield (
                f"{stage}: has gang={stage.gang} and staleness={graph.staleness}; older weights "
                "are not kept in parts, use replicas= or staleness=0"
            )
        if is_half(graph.dtype_of(stage)):
            yield (
                f"{stage}: has gang={stage.gang} and dtype={graph.dtype_of(stage)!r}; a gang's "
                "weights are in float32 or float64 so far"
            )
        if isinstance(stage.what, Objective) and stage.freeze:
            yield f"{stage}: is frozen and has gang={stage.gang}; use replicas= for a frozen one"


def windows_hold_a_slot(graph: Graph) -> Iterator[str]:
    for stage in graph.stages:
        needed = packs_at_once(graph, stage)
        if isinstance(stage.what, Encoder) and stage.window is not None and stage.window < needed:
            yield (
                f"{stage}: window={stage.window}, but the objective's data ranks take as many "
                f"packs at once as need {needed} of each of its {stage.ways}; raise window="
            )


def packs_at_once(graph: Graph, encoder: StageSpec) -> int:
    """How many packs a worker of this encoder holds before the objective can begin with any.

    The ranks of a gang begin a slot together, when all of its packs are there.
    """
    ways = [s.gang.data for s in graph.stages if isinstance(s.what, Objective)]
    taken, made = max(ways, default=1), encoder.ways
    slots = range(made)
    return max(((s + 1) * taken - 1) // made - s * taken // made + 1 for s in slots)


def _can_share(what: Trainable) -> bool:  # type: ignore[type-arg]
    return bool(what.tensor_plan()) or type(what).parallelize is not Trainable.parallelize
