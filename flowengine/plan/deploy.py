"""Deployments of a graph: its own flow under a plan, and the ways it is compared with.

monolithic     one layout for all on all devices, the encoders in the objective's first pipeline
               part: what Megatron-LM does
synchronous    encoders and objective on devices of their own, in layouts of their own, but a step
               is over for all before the next begins: what DistTrain does
bound          the objective alone on all devices, features for nothing: no flow is faster
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowengine.api import Encoder, Packer, Source
from flowengine.errors import PlanError
from flowengine.graph import Graph
from flowengine.graph.description import StageSpec
from flowengine.graph.share import share_bytes
from flowengine.plan.costs import Parallel
from flowengine.plan.deployment import Deployed, Deployment, Handover, StepWork
from flowengine.plan.figures import simulate
from flowengine.plan.planner import CostModel, find_candidates, serving_rate
from flowengine.plan.work import stage_of, trainable_stages

FINALISTS = 4
"""Layouts that are simulated to find the best monolithic one; the others' rates are lower."""


def deploy(
    graph: Graph,
    layouts: Mapping[str, Parallel],
    model: CostModel,
    *,
    handover: Handover = "pool",
    barrier: bool = False,
) -> Deployment:
    """The graph with these layouts for its encoders and its objective."""
    encoders, objective = trainable_stages(graph)
    for stage in (*encoders, objective):
        if stage.name not in layouts:
            raise PlanError(f"plan: has no layout for {stage}; it has {', '.join(layouts)}")
    return Deployment(
        encoders=tuple(_deployed(graph, stage, layouts[stage.name], model) for stage in encoders),
        objective=_deployed(graph, objective, layouts[objective.name], model),
        source=stage_of(graph, Source).name,
        packer=stage_of(graph, Packer).name,
        credits=stage_of(graph, Packer).credits.items,
        staleness=graph.staleness,
        together=graph.clip_norm is not None,
        handover=handover,
        barrier=barrier,
        **model.overheads(),
    )


def deploy_monolithic(
    graph: Graph, steps: Sequence[StepWork], model: CostModel, *, devices: int
) -> Deployment:
    """The best layout in which all stages share all devices, by simulation of the likeliest."""
    encoders, objective = trainable_stages(graph)
    found = []
    for layout in model.layouts(objective):
        replicas = devices // (layout.tensor * layout.pipeline)
        if replicas * layout.tensor * layout.pipeline != devices:
            continue
        own = replace(layout, replicas=replicas)
        guests = replace(own, pipeline=1)
        layouts = {objective.name: own, **{e.name: guests for e in encoders}}
        deployment = replace(deploy(graph, layouts, model), colocated=True)
        together = (*deployment.encoders, deployment.objective)
        if sum(s.costs.memory.total for s in together) > model.memory_bytes:
            continue
        slowest = min(serving_rate(steps, stage.costs, stage.parallel) for stage in together)
        found.append((slowest, deployment))
    if not found:
        raise PlanError(f"plan: {graph}: no layout of all stages together fits {devices} devices")
    found.sort(key=lambda each: -each[0])
    finalists = [deployment for _, deployment in found[:FINALISTS]]
    return min(finalists, key=lambda each: simulate(each, steps)[0].step_s)


def deploy_bound(
    graph: Graph, steps: Sequence[StepWork], model: CostModel, *, devices: int
) -> Deployment:
    """The objective alone, on as many of the devices as it can use."""
    objective = trainable_stages(graph)[1]
    candidates = find_candidates(graph, objective, steps, model, devices=devices)
    best = max(candidates, key=lambda each: (each.rate, -each.devices))
    stage = _deployed(graph, objective, best.parallel, model)
    return Deployment(encoders=(), objective=stage, together=False)


def uniform_layouts(
    graph: Graph, steps: Sequence[StepWork], model: CostModel, *, layout: Parallel, devices: int
) -> dict[str, Parallel]:
    """Without an allocator: every encoder in the objective's tensor parallelism, and devices by
    FLOPs, in whole replicas, at least one each."""
    encoders, objective = trainable_stages(graph)
    flops = {s.name: _flops(steps, s, model, layout) for s in (*encoders, objective)}
    whole = sum(flops.values())
    layouts, left = {}, devices
    for stage in encoders:
        wanted = flops[stage.name] / whole * devices / layout.tensor
        layouts[stage.name] = Parallel(max(1, round(wanted)), layout.tensor)
        left -= layouts[stage.name].devices
    each = layout.tensor * layout.pipeline
    if left < each:
        raise PlanError(f"plan: {devices} devices hold no replica of {objective} beside encoders")
    return {**layouts, objective.name: replace(layout, replicas=left // each)}


def _flops(
    steps: Sequence[StepWork], stage: StageSpec, model: CostModel, layout: Parallel
) -> float:
    costs = model.costs(stage, replace(layout, pipeline=1))
    return sum(costs.flops.seconds(p.loads[costs.modality]) for step in steps for p in step.packs)


def _deployed(graph: Graph, stage: StageSpec, parallel: Parallel, model: CostModel) -> Deployed:
    rows, share = 0, math.inf
    if isinstance(stage.what, Encoder):
        rows = math.prod(stage.what.feature_shape()) * model.value_bytes
        # Shares are even over all that emit, so a stage's total does not depend on its replicas.
        share = share_bytes(graph, stage) * stage.replicas / parallel.replicas
    return Deployed(
        name=stage.name,
        parallel=parallel,
        costs=model.costs(stage, parallel),
        share_bytes=share,
        row_bytes=rows,
        window=stage.window,
    )
