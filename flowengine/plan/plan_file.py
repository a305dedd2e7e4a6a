"""A plan as a file: JSON that `flowengine simulate` and `flowengine run --plan` read.

format        1
graph         the graph's name
devices       the fleet, e.g. "64xH200"; "2xcpu" for this machine's cores
costs         where they came from: "roofline" or "profile"
stages        by name: replicas, tensor, pipeline, recompute, devices, rate (samples of the graph
              per second it could serve), demand (rows per sample of the graph), memory_bytes per
              device, threads (of a worker; null: the runtime's choice)
predicted     samples_per_s, step_s, bottleneck (a stage), mfu (null without a device's peak)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowengine.errors import PlanError
from flowengine.graph import Graph
from flowengine.graph.description import StageSpec
from flowengine.plan.costs import Parallel
from flowengine.plan.work import trainable_stages

FORMAT = 1
LOCAL = "cpu"
"""The device of a plan for this machine."""


@dataclass(frozen=True)
class StagePlan:
    """What one stage gets; the module's docstring has the fields."""

    replicas: int
    tensor: int
    pipeline: int
    recompute: bool
    devices: int
    rate: float
    demand: float
    memory_bytes: float
    threads: int | None = None

    @property
    def parallel(self) -> Parallel:
        return Parallel(self.replicas, self.tensor, self.pipeline, self.recompute)


@dataclass(frozen=True)
class Predicted:
    """What the simulator expects of the plan."""

    samples_per_s: float
    step_s: float
    bottleneck: str
    mfu: float | None = None


@dataclass(frozen=True)
class Plan:
    """A plan; the module's docstring has the fields."""

    graph: str
    devices: str
    costs: str
    stages: Mapping[str, StagePlan]
    predicted: Predicted

    @property
    def layouts(self) -> dict[str, Parallel]:
        return {name: stage.parallel for name, stage in self.stages.items()}

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n")


def read_plan(path: Path) -> Plan:
    """The plan in this file; PlanError where it is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise PlanError(f"{path}: has format {found['format']}; expected {FORMAT}")
        stages = {name: StagePlan(**stage) for name, stage in found["stages"].items()}
        predicted = Predicted(**found["predicted"])
        return Plan(found["graph"], found["devices"], found["costs"], stages, predicted)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(
            f"{path}: is no plan ({type(error).__name__}: {error}); expected a file that "
            "flowengine plan wrote"
        ) from None


def check_plan(plan: Plan, graph: Graph) -> None:
    """PlanError unless the plan is for this graph, with a layout for each stage with weights."""
    stages = {stage.name for stage in _planned(graph)}
    if plan.graph != graph.name:
        raise PlanError(f"plan: is for graph '{plan.graph}', this is '{graph.name}'; plan it anew")
    if set(plan.stages) != stages:
        raise PlanError(
            f"plan: has stages {sorted(plan.stages)}, {graph} has {sorted(stages)}; plan it anew"
        )


def apply_plan(plan: Plan, graph: Graph) -> None:
    """Gives the graph's stages what the local runtime can give them: replicas and threads.

    PlanError for what it cannot: devices other than this machine's cores, tensor and pipeline
    parallelism.
    """
    check_plan(plan, graph)
    count, _, device = plan.devices.partition("x")
    if device != LOCAL:
        raise PlanError(
            f"plan: is for {plan.devices}; the local runtime has this machine's cores alone. Plan "
            f"with --devices Nx{LOCAL} and a profile to run here ({count} devices need a cluster)"
        )
    for stage in _planned(graph):
        given = plan.stages[stage.name]
        if given.tensor * given.pipeline != 1:
            raise PlanError(
                f"plan: stage '{stage.name}' has TP {given.tensor} x PP {given.pipeline}; the "
                "local runtime runs a replica in one process. Plan with replicas alone"
            )
        stage.replicas = given.replicas
        stage.threads = given.threads


def _planned(graph: Graph) -> list[StageSpec]:
    encoders, objective = trainable_stages(graph)
    return [*encoders, objective]
