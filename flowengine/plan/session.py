"""From what a user asks for to a plan with a prediction, and to simulations to compare it with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flowengine.errors import PlanError
from flowengine.graph import Graph
from flowengine.plan.costs import Parallel
from flowengine.plan.deploy import deploy, deploy_bound, deploy_monolithic, uniform_layouts
from flowengine.plan.deployment import Deployment, Handover, StepWork
from flowengine.plan.device import Device, parse_fleet
from flowengine.plan.figures import WARM, Figures, simulate
from flowengine.plan.flow import Flow
from flowengine.plan.plan_file import LOCAL, Plan, Predicted, StagePlan
from flowengine.plan.planner import CostModel, Roofline, make_allocation
from flowengine.plan.profile import Profile, Profiled
from flowengine.plan.work import plan_work, read_lengths, trainable_stages

Part = Literal["pool", "allocator", "scheduler"]
PARTS: tuple[Part, ...] = ("pool", "allocator", "scheduler")
"""What a simulation may do without. pool: a step's features are handed over at once, and encoders
wait until they are used. allocator: uniform_layouts. scheduler: samples packed as they come."""

Baseline = Literal["monolithic", "synchronous", "bound"]
BASELINES: tuple[Baseline, ...] = ("monolithic", "synchronous", "bound")
"""What a simulation may be held against (flowengine.plan.deploy)."""

EAGER = (1.0, 0.67, 0.5)
"""By how much a batch-synchronous run may underrate its encoders, and so give them more devices:
they have to be done within the step. The best is taken."""


@dataclass(frozen=True)
class Workload:
    """A graph's first steps, packed by its packer and as samples come."""

    planned: Sequence[StepWork]
    arrived: Sequence[StepWork]


def read_workload(graph: Graph, *, steps: int) -> Workload:
    """The first `steps` steps, which must be more than warm up."""
    if steps <= WARM:
        raise PlanError(f"simulate: {steps} steps; expected more than the {WARM} that warm up")
    lengths = read_lengths(graph, steps=steps)
    return Workload(plan_work(graph, lengths), plan_work(graph, lengths, arrival=True))


@dataclass(frozen=True)
class Setting:
    """What is planned and simulated. devices: how many there are; name: what the fleet is called,
    e.g. "64xH200". device: whose peak MFU is a part of; None for none."""

    graph: Graph
    work: Workload
    model: CostModel
    devices: int
    name: str
    device: Device | None = None


def make_setting(
    graph: Graph,
    devices: str,
    *,
    steps: int,
    profile: Profile | None = None,
    memory_bytes: float | None = None,
) -> Setting:
    """The setting of a checked graph on "64xH200", or with its profile on this machine's "2xcpu".

    steps: how many of its first steps. memory_bytes: of a device, where it is not the library's.
    """
    count, _, name = devices.partition("x")
    if (name == LOCAL) != (profile is not None):
        raise PlanError(
            f"devices: '{devices}' and "
            + ("no profile" if profile is None else "a profile")
            + f"; a profile is of this machine: give both, Nx{LOCAL} and --profile, or neither"
        )
    work = read_workload(graph, steps=steps)
    if profile is not None:
        if not count.isdigit() or int(count) < 1:
            raise PlanError(f"devices: '{devices}'; expected COUNTx{LOCAL}, e.g. 2x{LOCAL}")
        cores = int(count)
        return Setting(graph, work, Profiled(graph, profile, work.planned, cores), cores, devices)
    fleet = parse_fleet(devices, memory_bytes=memory_bytes)
    model = Roofline(graph, fleet, work.planned)
    return Setting(graph, work, model, fleet.count, str(fleet), fleet.device)


def make_plan(setting: Setting) -> Plan:
    """The best plan, with what a simulation expects of it."""
    graph, work, model = setting.graph, setting.work, setting.model
    found = make_allocation(graph, work.planned, model, devices=setting.devices)
    encoders, objective = trainable_stages(graph)
    stages = {}
    chosen = (found.choice.objective, *found.choice.encoders)
    for stage, candidate, demand in zip((objective, *encoders), chosen, found.demands, strict=True):
        layout = candidate.parallel
        stages[stage.name] = StagePlan(
            replicas=layout.replicas,
            tensor=layout.tensor,
            pipeline=layout.pipeline,
            recompute=layout.recompute,
            devices=layout.devices,
            rate=candidate.rate,
            demand=demand,
            memory_bytes=candidate.memory_bytes,
        )
    layouts = {name: stage.parallel for name, stage in stages.items()}
    figures, _ = simulate(deploy(graph, layouts, model), work.planned, device=setting.device)
    predicted = Predicted(
        samples_per_s=figures.samples_per_s,
        step_s=figures.step_s,
        bottleneck=min(stages, key=lambda each: stages[each].rate),
        mfu=figures.mfu,
    )
    return Plan(graph.name, setting.name, model.origin, stages, predicted)


def simulate_without(
    setting: Setting, *, layouts: Mapping[str, Parallel], without: Collection[Part] = ()
) -> tuple[Figures, Flow]:
    """The graph's flow under these layouts, less these parts."""
    graph, work, model = setting.graph, setting.work, setting.model
    if "allocator" in without:
        own = layouts[trainable_stages(graph)[1].name]
        layouts = uniform_layouts(graph, work.planned, model, layout=own, devices=setting.devices)
    handover: Handover = "step" if "pool" in without else "pool"
    deployment = deploy(graph, layouts, model, handover=handover)
    steps = work.arrived if "scheduler" in without else work.planned
    return simulate(deployment, steps, device=setting.device)


def simulate_baseline(setting: Setting, baseline: Baseline) -> tuple[Figures, Flow]:
    """The same samples in another way. Monolithic packs as samples come; the others by plan."""
    graph, work, model = setting.graph, setting.work, setting.model
    if baseline == "monolithic":
        one = deploy_monolithic(graph, work.arrived, model, devices=setting.devices)
        return simulate(one, work.arrived, device=setting.device)
    if baseline == "bound":
        one = deploy_bound(graph, work.planned, model, devices=setting.devices)
        return simulate(one, work.planned, device=setting.device)
    tried = [simulate(each, work.planned, device=setting.device) for each in _synchronous(setting)]
    return min(tried, key=lambda each: each[0].step_s)


def _synchronous(setting: Setting) -> list[Deployment]:
    graph, work, model = setting.graph, setting.work, setting.model
    encoders, objective = trainable_stages(graph)
    tried = []
    for eager in EAGER:
        found = make_allocation(
            graph, work.planned, model, devices=setting.devices, eager=eager
        ).choice
        layouts = {e.name: c.parallel for e, c in zip(encoders, found.encoders, strict=True)}
        layouts[objective.name] = found.objective.parallel
        tried.append(deploy(graph, layouts, model, barrier=True))
    return tried
