"""Says in words who waits for whom, the root cause first.

Every stage that does nothing waits for other stages: a starved one for those it reads, one without
credits for the reader that holds them, one without gradients for the objective. Followed to its end
this leads to stages that are at work, which everybody waits for, or around in a circle. A process
that is stopped is at fault whatever it last said of itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flowengine.api import Objective
from flowengine.graph import Graph
from flowengine.graph.description import POOL
from flowengine.graph.size import format_bytes
from flowengine.runtime.events import StageStatus, Status

SHOWN = 8
AT_FAULT = ("busy", "starting", "stopped")
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


def look_closer(status: Status, known: Dependencies) -> Status:
    """The status with what the stages do not say themselves: whose process is stopped, and who is
    idle."""
    stages = [replace(s, state="stopped") if is_stopped(s.pid) else s for s in status.stages]
    idle: set[str] = set()
    for _ in stages:  # Once per stage is enough for the longest chain of them.
        over = {s.stage for s in stages if s.state == "done"} | idle
        idle |= {s.stage for s in stages if s.state == "starved" and _reads_only(s, over, known)}
    found = [
        replace(s, state="idle") if s.state == "starved" and s.stage in idle else s for s in stages
    ]
    return replace(status, stages=tuple(found))


def _reads_only(stage: StageStatus, over: set[str], known: Dependencies) -> bool:
    read = set(known.upstream.get(stage.stage, ()))
    return bool(read) and read <= over


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped, by a signal or a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in "tT"


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
    return [n for n in found if n != stage.stage and n in states and not _is_over(states[n])]


def root_causes(status: Status, known: Dependencies) -> list[StageStatus]:
    """The stage replicas that all others wait for, directly or not: those that are stopped, else
    those at work; where nobody is, those that lie on a circle of waiting, or wait for nobody."""
    stopped = [stage for stage in status.stages if stage.state == "stopped"]
    at_work = [stage for stage in status.stages if stage.state in AT_FAULT]
    if stopped or at_work:
        return stopped or at_work
    waiting = [stage for stage in status.stages if not _is_over(stage)]
    edges = {s.stage: awaited_stages(s, status, known) for s in waiting}
    return [s for s in waiting if not edges[s.stage] or s.stage in _reach(s.stage, edges)]


def describe_stall(status: Status, known: Dependencies) -> str:
    """What everybody waits for, then a line per stage replica that is not done."""
    causes = root_causes(status, known)
    names = ", ".join(_label(stage) for stage in causes)
    if any(stage.state in AT_FAULT for stage in causes):
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


def _is_over(stage: StageStatus) -> bool:
    return stage.state in ("done", "idle")


def _describe(stage: StageStatus, status: Status, known: Dependencies) -> str:
    since = f" for {max(0.0, status.wall_s - stage.since_s):.0f} s"
    if stage.state in AT_FAULT:
        samples = ", ".join(str(sample) for sample in stage.in_hand[:SHOWN])
        more = f" and {len(stage.in_hand) - SHOWN} more" if len(stage.in_hand) > SHOWN else ""
        hand = f" with samples {samples}{more} in hand" if samples else ""
        return f"{_label(stage)} is {stage.state}{since}{hand}"
    if stage.state == "idle":
        return f"{_label(stage)} is idle{since}: all that it reads has ended"
    on = " and ".join(awaited_stages(stage, status, known))
    whom = f", that is for {on}" if on else ""
    held = "".join(f"; {text}" for text in _what_is_held(stage, status))
    return f"{_label(stage)} is {stage.state}{since}, waiting for {stage.waits_for}{whom}{held}"


def _what_is_held(stage: StageStatus, status: Status) -> list[str]:
    """Who holds the credits or the room that a blocked stage waits for, and how much."""
    if stage.state != "blocked":
        return []
    credits = _CREDITS.fullmatch(stage.waits_for)
    if credits is not None:
        mine = {stage.stage, _label(stage)}
        return [
            f"{channel.consumer} holds {channel.items} of {channel.bound_items} rows, "
            f"{format_bytes(channel.num_bytes)} of {format_bytes(channel.bound_bytes)}"
            for channel in status.channels
            if channel.producer in mine and channel.consumer.partition("[")[0] == credits[1]
        ]
    if stage.waits_for == "room in the pool":
        used, bound = status.pool.used_bytes, status.pool.capacity_bytes
        return [f"{format_bytes(used)} of the pool's {format_bytes(bound)} are in use"]
    return []


def _label(stage: StageStatus) -> str:
    return f"{stage.stage}[{stage.replica}]"
