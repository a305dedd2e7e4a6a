"""Where a run's time went, and which stage the others waited for.

Shares are taken from the spans between the ends of training steps, without the first steps, whose
time holds what is compiled, warmed up and started. So they are those of the steady state, whatever
the run's length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flowengine.observe.run_files import RunFiles
from flowengine.runtime.spans import is_kept

WARM_STEPS = 2
"""Left out at the start, unless there are no others."""

CLEAR = 0.1
"""By so much the busiest stage must be busier than the next to be called the bottleneck alone."""


@dataclass
class Shares:
    """One stage: seconds of all its replicas by state, of work by name, of waiting by cause."""

    seconds: dict[str, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)
    waits: dict[tuple[str, str], float] = field(default_factory=dict)

    def share(self, state: str) -> float:
        """The part of its time in this state, 0 to 1."""
        total = sum(self.seconds.values())
        return self.seconds.get(state, 0.0) / total if total else 0.0


def stage_shares(files: RunFiles) -> dict[str, Shares]:
    """Per stage, in the order of the graph; empty where no training step is in the spans."""
    found = {stage.name: Shares() for stage in files.sketch.stages if stage.kind != "pool"}
    for row in _sums(files):
        stage, state, what, seconds = row["stage"], row["state"], row["what"], row["took_s_sum"]
        shares = found[stage]
        shares.seconds[state] = shares.seconds.get(state, 0.0) + seconds
        if state == "busy":
            shares.work[what] = shares.work.get(what, 0.0) + seconds
        else:
            shares.waits[state, what] = shares.waits.get((state, what), 0.0) + seconds
    return found


@dataclass(frozen=True)
class Verdict:
    """What to say of the bottleneck. stage: its name, None where no stage stands out."""

    stage: str | None
    text: str
    advice: str


def find_bottleneck(shares: Mapping[str, Shares], *, replicas: Mapping[str, int]) -> Verdict:
    """The busiest stage, if it is clearly so, and what the stages that wait most wait for."""
    if not any(each.seconds for each in shares.values()):
        return Verdict(None, "No training step was recorded.", "")
    ranked = sorted(shares, key=lambda name: -shares[name].share("busy"))
    first = ranked[0]
    busy = shares[first].share("busy")
    second = ranked[1] if len(ranked) > 1 else None
    if second is not None and busy - shares[second].share("busy") < CLEAR:
        text = (
            f"No stage stands out: {first} is busy {busy:.0%} of the time and {second} "
            f"{shares[second].share('busy'):.0%}."
        )
        return Verdict(None, text, "Work is spread well; more speed needs faster stages.")
    text = f"{first} is the bottleneck: it is busy {busy:.0%} of the time"
    waiting = _most_waiting(shares, without=first)
    if waiting is not None:
        name, (state, cause), share = waiting
        text += f", while {name} is {state} {share:.0%} of it, waiting for {cause}"
    return Verdict(first, text + ".", _advise(shares[first], replicas.get(first, 1)))


def describe_verdict(files: RunFiles) -> tuple[dict[str, Shares], Verdict]:
    """The shares of a run's stages, and its bottleneck."""
    shares = stage_shares(files)
    replicas = {name: stage["replicas"] for name, stage in files.config["stages"].items()}
    return shares, find_bottleneck(shares, replicas=replicas)


def _most_waiting(
    shares: Mapping[str, Shares], *, without: str
) -> tuple[str, tuple[str, str], float] | None:
    """Of the stages with work to speak of, the one that waits most, and for what."""
    working = [name for name in shares if name != without and shares[name].share("busy") > 0.05]
    waits = [
        (name, cause, seconds / sum(shares[name].seconds.values()))
        for name in working
        for cause, seconds in shares[name].waits.items()
    ]
    return max(waits, key=lambda wait: wait[2], default=None)


def _advise(shares: Shares, replicas: int) -> str:
    """What would make the stage less of a bottleneck."""
    if not shares.work:
        return ""
    most = max(shares.work, key=shares.work.__getitem__)
    share = shares.work[most] / sum(shares.work.values())
    where = f"Most of its work is '{most}' ({share:.0%} of it)."
    if replicas > 1:
        return f"{where} More than its {replicas} replicas help if there are cores for them."
    return f"{where} replicas=2 divides it, if there is a core for it; else make it cheaper."


def _sums(files: RunFiles) -> list[dict[str, Any]]:
    """Seconds within the steady stretches, by stage, state and what, the largest first."""
    parts = []
    ends = {step["step"]: step["wall_s"] for step in files.steps}
    for began_s, ended_s in steady_stretches(ends, breaks=files.restarts_s):
        spans = files.spans
        ends = pc.min_element_wise(spans["ended_s"], pa.scalar(ended_s))
        took = pc.subtract(ends, pc.max_element_wise(spans["began_s"], pa.scalar(began_s)))
        parts.append(spans.append_column("took_s", took).filter(pc.greater(took, 0.0)))
    if not parts:
        return []
    grouped = pa.concat_tables(parts).group_by(["stage", "state", "what"])
    rows: list[dict[str, Any]] = grouped.aggregate([("took_s", "sum")]).to_pylist()
    return sorted(rows, key=lambda row: -row["took_s_sum"])


def steady_stretches(
    ends: Mapping[int, float], *, breaks: Sequence[float] = ()
) -> list[tuple[float, float]]:
    """From the end of a step to that of a later one, such that all spans in between are kept.

    ends: per step, when it was done, in seconds. breaks: times at which the run began again; the
    steps that they fall in are left out.
    """
    first = min(ends, default=0) + (WARM_STEPS if len(ends) > WARM_STEPS + 1 else 1)
    found: list[tuple[float, float]] = []
    for step in sorted(ends):
        whole = step - 1 in ends and not any(ends[step - 1] < at < ends[step] for at in breaks)
        if step >= first and whole and is_kept(step) and is_kept(step - 1):
            if found and found[-1][1] == ends[step - 1]:
                found[-1] = (found[-1][0], ends[step])
            else:
                found.append((ends[step - 1], ends[step]))
    return found
