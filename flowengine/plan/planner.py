"""From a graph and a fleet to a plan: candidates of every stage, and the best of all choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from flowengine.api import Trainable, TransformerShape
from flowengine.errors import PlanError
from flowengine.graph import Graph
from flowengine.graph.description import StageSpec
from flowengine.graph.size import format_bytes
from flowengine.plan.allocate import Candidate, Choice, allocate
from flowengine.plan.costs import Parallel, StageCosts
from flowengine.plan.deployment import StepWork
from flowengine.plan.device import Fleet
from flowengine.plan.load import Line, Load, mean_load, total_load
from flowengine.plan.roofline import roofline_costs
from flowengine.plan.work import modality_of_load, trainable_stages

PIPELINES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Pipeline parts that are tried, where they divide the layers."""


class Overheads(TypedDict, total=False):
    """What a deployment needs to know beside the trainable stages' costs (Deployment's fields)."""

    read: Line
    plan_s: float
    join: Line
    cores: int
    slowdown: tuple[float, ...]


class CostModel(Protocol):
    """Where costs come from."""

    @property
    def origin(self) -> str:
        """In a word: "roofline" or "profile"."""
        ...

    @property
    def memory_bytes(self) -> float:
        """What a device has, for the candidates to fit in."""
        ...

    @property
    def value_bytes(self) -> int:
        """Bytes of one number of a feature row."""
        ...

    def overheads(self) -> Overheads:
        """What else there is to a deployment."""
        ...

    def layouts(self, stage: StageSpec) -> list[Parallel]:
        """The layouts of one replica that a stage may have; replicas is 1 in each."""
        ...

    def costs(self, stage: StageSpec, parallel: Parallel) -> StageCosts:
        """What the stage costs in a layout."""
        ...


@dataclass(frozen=True)
class Roofline:
    """Costs from shapes and a data sheet (flowengine.plan.roofline)."""

    graph: Graph
    fleet: Fleet
    steps: Sequence[StepWork]

    value_bytes: int = 2
    origin: str = "roofline"

    @property
    def memory_bytes(self) -> float:
        return self.fleet.device.memory_bytes

    def overheads(self) -> Overheads:
        """None: reading and joining happen on the hosts, every part has devices of its own."""
        return {}

    def layouts(self, stage: StageSpec) -> list[Parallel]:
        """Tensor parallelism within a node, by powers of two that divide the heads; pipelines for
        the objective alone; each with and without recompute."""
        shape = _shape(stage)
        widths = [1 << power for power in range(self.fleet.node_size.bit_length())]
        deep = PIPELINES if shape.vocabulary else (1,)
        learns = stage.trains or _has_backward(self.graph, stage)
        return [
            Parallel(1, tensor, pipeline, recompute)
            for tensor in widths
            if tensor <= self.fleet.node_size and shape.heads % tensor == 0
            for pipeline in deep
            if shape.layers % pipeline == 0 and tensor * pipeline <= self.fleet.count
            for recompute in ((False, True) if learns else (False,))
        ]

    def costs(self, stage: StageSpec, parallel: Parallel) -> StageCosts:
        modality = modality_of_load(stage)
        largest, mean = self._extremes[modality]
        return roofline_costs(
            _shape(stage),
            modality=modality,
            trains=stage.trains,
            returns=_has_backward(self.graph, stage),
            parallel=parallel,
            fleet=self.fleet,
            largest=largest,
            mean=mean,
        )

    @cached_property
    def _extremes(self) -> dict[str, tuple[Load, Load]]:
        """The load of the largest and of the mean pack, by modality."""
        found = {}
        for name in self.steps[0].terms:
            loads = [pack.loads[name] for step in self.steps for pack in step.packs]
            found[name] = max(loads, key=lambda load: load.rows), mean_load(loads)
        return found


@dataclass(frozen=True)
class Allocation:
    """A choice for a graph's stages. encoders: in the graph's order. demands: rows per sample of
    the graph, in the order of the objective and the encoders."""

    choice: Choice
    demands: tuple[float, ...]
    considered: int


def make_allocation(
    graph: Graph, steps: Sequence[StepWork], model: CostModel, *, devices: int, eager: float = 1.0
) -> Allocation:
    """The best layouts for all stages on so many devices; PlanError where nothing fits.

    eager: below 1, encoders count as slower by this factor, and are given more.
    """
    encoders, objective = trainable_stages(graph)
    stages = [objective, *encoders]
    tried = [find_candidates(graph, stage, steps, model, devices=devices) for stage in stages]
    slowed = [[replace(each, rate=eager * each.rate) for each in stage] for stage in tried[1:]]
    choice = allocate(tried[0], slowed, devices=devices)
    samples = sum(step.samples for step in steps)
    demands = [_total(steps, stage).rows / samples for stage in stages]
    return Allocation(choice, tuple(demands), sum(len(each) for each in tried))


def find_candidates(
    graph: Graph, stage: StageSpec, steps: Sequence[StepWork], model: CostModel, *, devices: int
) -> list[Candidate]:
    """All layouts of a stage that fit a device's memory, with recompute only where they have to.

    Replicas divide the global batch: its samples, or its packs where every step has as many.
    """
    found: list[Candidate] = []
    fitting: set[Parallel] = set()
    least = float("inf")
    counts = {len(step.packs) for step in steps}
    batch = _divisors(graph.step.samples) | (_divisors(counts.pop()) if len(counts) == 1 else set())
    for replicas in sorted(batch):
        for layout in model.layouts(stage):
            parallel = Parallel(replicas, layout.tensor, layout.pipeline, layout.recompute)
            if parallel.devices > devices:
                continue
            if parallel.recompute and replace(parallel, recompute=False) in fitting:
                continue
            costs = model.costs(stage, parallel)
            least = min(least, costs.memory.total)
            if costs.memory.total <= model.memory_bytes:
                rate = serving_rate(steps, costs, parallel, ahead=not costs.learns)
                found.append(Candidate(parallel, rate, costs.memory.total))
                fitting.add(parallel)
    if not found:
        raise PlanError(
            f"plan: {stage}: no layout on {devices} devices fits into "
            f"{format_bytes(int(model.memory_bytes))} of memory; the smallest needs "
            + (format_bytes(int(least)) if least < float("inf") else "more devices")
        )
    return found


def serving_rate(
    steps: Sequence[StepWork], costs: StageCosts, parallel: Parallel, *, ahead: bool = False
) -> float:
    """Samples of the graph per second that a stage serves alone.

    A step takes as long as its slowest replica: in a pipeline every slot takes as long as the
    costliest of the packs that are in it, after it is filled; then comes the update. ahead:
    replicas do not wait for each other at a step's end (a frozen encoder's).
    """
    turns = [_turns(step, costs, parallel) for step in steps]
    if ahead:
        seconds = float(sum(each.sum(axis=0) for each in turns).max())
    else:
        slots = [_slots(each, costs.parts).sum(axis=0).max() for each in turns]
        seconds = float(sum(slots)) + len(steps) * costs.update_s
    return sum(step.samples for step in steps) / seconds if seconds else float("inf")


def _turns(step: StepWork, costs: StageCosts, parallel: Parallel) -> NDArray[np.float64]:
    """Seconds of the packs on one part, by turn and replica; 0 where a replica has no pack."""
    each = step.terms[costs.modality] @ np.array((costs.forward + costs.backward).coefficients)
    missing = -len(each) % parallel.replicas
    return np.append(each, np.zeros(missing)).reshape(-1, parallel.replicas)


def _slots(turns: NDArray[np.float64], parts: int) -> NDArray[np.float64]:
    """What every slot of the pipelines takes: the largest of the turns that are in it."""
    idle = np.zeros((parts - 1, turns.shape[1]))
    padded = np.concatenate([idle, turns, idle])
    windows = np.lib.stride_tricks.sliding_window_view(padded, parts, axis=0)
    return np.asarray(windows.max(axis=-1))


def _total(steps: Sequence[StepWork], stage: StageSpec) -> Load:
    modality = modality_of_load(stage)
    return total_load(pack.loads[modality] for step in steps for pack in step.packs)


def _shape(stage: StageSpec) -> TransformerShape:
    assert isinstance(stage.what, Trainable)
    shape = stage.what.shape()
    if shape is None:
        raise PlanError(
            f"plan: {stage}: {type(stage.what).__name__} has no shape() to compute its cost from; "
            "define it, or give a profile (flowengine profile)"
        )
    return shape


def _has_backward(graph: Graph, stage: StageSpec) -> bool:
    """Whether gradients pass through a stage: an objective's, if any encoder trains."""
    encoders, objective = trainable_stages(graph)
    return stage is objective and any(encoder.trains for encoder in encoders)


def _divisors(number: int) -> set[int]:
    return {each for each in range(1, number + 1) if number % each == 0}
