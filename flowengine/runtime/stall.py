"""Says in words who waits for whom, the root cause first.

Every stage that does nothing waits for other stages: a starved one for those it reads, one without
credits for the reader that holds them, one without gradients for the objective. Followed to its end
this leads to stages that are at work, which everybody waits for, or around in a circle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowengine.api import Objective
from flowengine.graph import Graph
from flowengine.graph.description import POOL
from flowengine.runtime.events import StageStatus, Status

SHOWN = 8
_CREDITS = re.compile(r"credits of '(.+)'")


@dataclass(frozen=True)
class Dependencies:
    """Who can wait for whom: upstream, by stage the stages it reads; objectives and trained, the
    stages that are."""

    upstream: Mapping[str, Sequence[str]]
    objectives: Sequence[str]
    trained: Sequence[str]


def find_dependencies(graph: Graph) -> Dependencies:
    """Those of a graph; a pool's reader reads what the pool joins."""
    upstream = {}
    for stage in graph.stages:
        read = [e.stage for e in stage.producers if e.stage != POOL]
        if any(e.stage == POOL for e in stage.producers):
            read += [e.stage for pool in graph.joins for e in pool.inputs]
        upstream[stage.name] = read
    objectives = [s.name for s in graph.stages if isinstance(s.what, Objective)]
    return Dependencies(upstream, objectives, [s.name for s in graph.stages if s.trains])


def awaited_stages(stage: StageStatus, status: Status, known: Dependencies) -> list[str]:
    """The stages that this one waits for; none while it is at work."""
    if stage.state not in ("starved", "blocked"):
        return []
    states = {each.stage: each for each in status.stages}
    credits = _CREDITS.fullmatch(stage.waits_for)
    if credits is not None:
        found = [credits[1]]
    elif stage.state == "starved":
        found = list(known.upstream.get(stage.stage, ()))
    elif "other stages' gradients" in stage.waits_for:
        found = [n for n in known.trained if n in states and states[n].waits_for != stage.waits_for]
    elif "gradients" in stage.waits_for:
        found = list(known.objectives)
    else:  # room in the pool, or leases: with whoever reads, or reads at the end
        readers = [n for n, read in known.upstream.items() if stage.stage in read]
        found = readers + [n for n in known.objectives if n not in readers]
    return [n for n in found if n != stage.stage and n in states and states[n].state != "done"]


def root_causes(status: Status, known: Dependencies) -> list[StageStatus]:
    """The stage replicas that all others wait for, directly or not: those at work; where nobody
    is, those that lie on a circle of waiting, or wait for nobody."""
    at_work = [stage for stage in status.stages if stage.state in ("busy", "starting")]
    if at_work:
        return at_work
    waiting = [stage for stage in status.stages if stage.state != "done"]
    edges = {s.stage: awaited_stages(s, status, known) for s in waiting}
    return [s for s in waiting if not edges[s.stage] or s.stage in _reach(s.stage, edges)]


def describe_stall(status: Status, known: Dependencies) -> str:
    """What everybody waits for, then a line per stage replica that is not done."""
    causes = root_causes(status, known)
    names = ", ".join(_label(stage) for stage in causes)
    if any(stage.state in ("busy", "starting") for stage in causes):
        head = f"everybody waits for {names}"
    else:
        head = f"nobody is at work; the root cause is at {names}"
    others = [s for s in status.stages if s.state != "done" and s not in causes]
    lines = [_describe(stage, status, known) for stage in [*causes, *others]]
    return head + ":\n" + "\n".join(f"  {line}" for line in lines)


def _reach(start: str, edges: Mapping[str, Sequence[str]]) -> set[str]:
    """All that `start` waits for, directly or not."""
    found: set[str] = set()
    ahead = list(edges[start])
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += edges.get(name, ())
    return found


def _describe(stage: StageStatus, status: Status, known: Dependencies) -> str:
    since = f" for {max(0.0, status.wall_s - stage.since_s):.0f} s"
    if stage.state in ("busy", "starting"):
        samples = ", ".join(str(sample) for sample in stage.in_hand[:SHOWN])
        more = f" and {len(stage.in_hand) - SHOWN} more" if len(stage.in_hand) > SHOWN else ""
        hand = f" with samples {samples}{more} in hand" if samples else ""
        return f"{_label(stage)} is {stage.state}{since}{hand}"
    on = " and ".join(awaited_stages(stage, status, known))
    whom = f", that is for {on}" if on else ""
    return f"{_label(stage)} is {stage.state}{since}, waiting for {stage.waits_for}{whom}"


def _label(stage: StageStatus) -> str:
    return f"{stage.stage}[{stage.replica}]"
