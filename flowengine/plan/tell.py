"""Tells observers of a simulation what they would be told of a run, in simulated seconds.

So the files of a simulated run are those of a run, and everything that reads them reads it: report,
compare, trace, draw. There is no loss, no weight and nothing in the pool.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowengine.graph import Graph
from flowengine.plan.clock import Actor, Stretch
from flowengine.plan.flow import Flow
from flowengine.plan.training import ObjectivePart
from flowengine.runtime.events import (
    Observer,
    PackRows,
    PoolStatus,
    RunDone,
    RunStarted,
    SpanRows,
    StageStatus,
    Status,
    StepDone,
)

RUNTIME = "simulated"


def simulated_graph(graph: Graph, flow: Flow) -> Graph:
    """The graph with as many replicas as were simulated, pipeline parts counted one by one."""
    counts: dict[str, int] = defaultdict(int)
    for actor in flow.actors:
        counts[actor.stage] += 1
    told = copy.copy(graph)
    told.steps = len(flow.steps)
    told.stages = [replace(s, replicas=counts[s.name]) for s in graph.stages if counts[s.name]]
    told.evaluations, told.checkpoints = [], None
    return told


def tell(flow: Flow, graph: Graph, *, max_tokens: int, run_dir: Path, observe: Observer) -> None:
    """Everything that happened in the flow, as events."""
    names = tuple(dict.fromkeys(actor.stage for actor in flow.actors))
    observe(RunStarted(graph.name, RUNTIME, run_dir, len(flow.steps), names))
    _tell_spans(flow, observe)
    for step, (work, ended) in enumerate(zip(flow.steps, flow.ends, strict=True)):
        count = len(work.packs)
        tokens = [pack.tokens for pack in work.packs]
        columns: dict[str, list[Any]] = {
            "step": [step] * count,
            "held_out": [False] * count,
            "pack": list(range(count)),
            "samples": [pack.samples for pack in work.packs],
            "tokens": tokens,
            "sample_ids": [list(pack.ids) for pack in work.packs],
            "targets": [0] * count,
            "room_tokens": [max_tokens] * count,
            "cost": [flow.deployment.objective.costs.pack_s(pack.whole) for pack in work.packs],
        }
        observe(PackRows(columns))
        observe(
            StepDone(
                step=step,
                wall_s=ended,
                loss=math.nan,
                samples=work.samples,
                tokens=work.tokens,
                targets=0,
                packs=count,
                fill=work.tokens / (count * max_tokens),
                gradient_norm=None,
                staleness={},
                lr={},
            )
        )
    observe(RunDone(flow.clock.now, 0.0, _status(flow), {}))


def _tell_spans(flow: Flow, observe: Observer) -> None:
    rows: dict[int, list[Stretch]] = defaultdict(list)
    for stretch in flow.clock.stretches:
        rows[stretch.actor].append(stretch)
    for index, stretches in sorted(rows.items()):
        actor, step = flow.actors[index], 0
        columns: dict[str, list[Any]] = defaultdict(list)
        for each in stretches:
            step = each.step if each.step >= 0 else step
            columns["state"].append(each.state)
            columns["what"].append(each.what)
            columns["step"].append(step)
            columns["held_out"].append(False)
            columns["pack"].append(each.pack)
            columns["began_s"].append(each.began)
            columns["ended_s"].append(each.ended)
        observe(SpanRows(actor.stage, _replica(flow, actor), columns))


def _replica(flow: Flow, actor: Actor) -> int:
    parts = flow.deployment.objective.costs.parts
    return actor.replica * parts + actor.part if isinstance(actor, ObjectivePart) else actor.replica


def _status(flow: Flow) -> Status:
    seconds: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    causes: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for each in flow.clock.stretches:
        took = each.ended - each.began
        seconds[each.actor][each.state] += took
        if each.state != "busy":
            causes[each.actor][f"{each.state}: {each.what}"] += took
    stages = tuple(
        StageStatus(
            stage=actor.stage,
            replica=_replica(flow, actor),
            state="done",
            waits_for="",
            busy_s=seconds[actor.index]["busy"],
            blocked_s=seconds[actor.index]["blocked"],
            starved_s=seconds[actor.index]["starved"],
            causes=dict(causes[actor.index]),
        )
        for actor in flow.actors
    )
    return Status(flow.clock.now, stages, PoolStatus(0, 0, 0))
