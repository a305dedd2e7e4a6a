"""A run as a trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

Format: "Trace Event Format", JSON object form. A process per stage, a thread per replica; work as
complete events ("X"), waiting as well, in a category of its own; a flow ("s", "t", "f") per sample,
through all the work on it from its reading to its backward; counters ("C") of the pool and the
channels; and the steps. Times are in microseconds since the run started. What torch's profiler
noted of chosen steps is merged in (flowengine.observe.trace_torch).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from flowengine.errors import FlowError
from flowengine.observe.run_files import RunFiles
from flowengine.observe.trace_torch import torch_events

STEPS, LEVELS = 1, 2
"""Process ids of the steps' track and of the counters; stages follow from FIRST."""

FIRST = 10
Event = dict[str, Any]
PackKey = tuple[int, bool, int]
"""step, held out, pack: what a pack is known by"""


def make_trace(files: RunFiles, *, steps: Sequence[range] = ()) -> Event:
    """The trace of a run that is over: of these steps alone, if any are given, with the evaluations
    right before them. FlowError if nothing of these steps is kept."""
    stages = {name: FIRST + index for index, name in enumerate(files.config["stages"])}
    spans = [span for span in files.spans.to_pylist() if _is_chosen(span["step"], steps)]
    if steps and not spans:
        kept = sorted(set(files.spans["step"].to_pylist()))
        known = f"of steps {kept[0]} to {kept[-1]}" if kept else "of no step"
        raise FlowError(f"{files.run_dir}: has no spans of these steps; it has spans {known}")
    window = _window(spans) if steps else (0.0, float("inf"))
    events = [
        *_names(files, stages),
        *(_span_event(span, stages) for span in spans),
        *_flows(spans, stages, files),
        *_step_events(files, steps),
        *_counters(files, window),
        *torch_events(files, stages, window),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"graph": files.config["graph"], "run_dir": str(files.run_dir)},
    }


def _is_chosen(step: int, steps: Sequence[range]) -> bool:
    return not steps or any(step in each for each in steps)


def _window(spans: list[Event]) -> tuple[float, float]:
    """Seconds from the first to the last of these spans."""
    began = min((span["began_s"] for span in spans), default=0.0)
    return began, max((span["ended_s"] for span in spans), default=0.0)


def _names(files: RunFiles, stages: dict[str, int]) -> Iterator[Event]:
    named = {STEPS: "steps", LEVELS: "pool and channels"}
    for order, (pid, name) in enumerate([*named.items(), *((p, n) for n, p in stages.items())]):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": order}}
    yield _thread_name(STEPS, 1, "steps")
    for name, pid in stages.items():
        for replica in range(files.config["stages"][name]["replicas"]):
            yield _thread_name(pid, track(replica), f"{name}[{replica}]")


def _thread_name(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}


def track(replica: int) -> int:
    """The thread id of a replica's own track."""
    return replica + 1


def _span_event(span: Event, stages: dict[str, int]) -> Event:
    busy = span["state"] == "busy"
    where = {"pack": span["pack"]} if span["pack"] >= 0 else {}
    return {
        "ph": "X",
        "pid": stages[span["stage"]],
        "tid": track(span["replica"]),
        "cat": "work" if busy else "wait",
        "name": span["what"] if busy else f"{span['state']}: {span['what']}",
        "ts": micros(span["began_s"]),
        "dur": micros(span["ended_s"]) - micros(span["began_s"]),
        "args": {"step": span["step"], "held_out": span["held_out"], **where},
    }


def _samples(files: RunFiles) -> dict[PackKey, list[int]]:
    """Which samples are in which pack."""
    return {
        (pack["step"], pack["held_out"], pack["pack"]): pack["sample_ids"]
        for pack in files.packs.to_pylist()
    }


def _flows(spans: list[Event], stages: dict[str, int], files: RunFiles) -> Iterator[Event]:
    """Arrows for every sample, from each piece of work on its pack to the next one, by their
    beginnings; of a step that was trained again, for each time."""
    samples = _samples(files)
    ways: dict[tuple[int, PackKey], list[Event]] = defaultdict(list)
    for span in spans:
        if span["pack"] >= 0 and span["state"] == "busy":
            pack = (span["step"], span["held_out"], span["pack"])
            ways[files.attempt(span["began_s"]), pack].append(span)
    number = 0
    for (_, pack), way in sorted(ways.items()):
        way.sort(key=lambda span: span["began_s"])
        if len(way) < 2:
            continue
        members = samples.get(pack, [])
        for place, sample in enumerate(members):
            number += 1
            yield from _arrows(way, stages, sample, number, (place + 0.5) / len(members) / 2)


def _arrows(
    way: list[Event], stages: dict[str, int], sample: int, number: int, share: float
) -> Iterator[Event]:
    """One sample's flow, through the point of every span that lies at `share` of its length: in its
    first half, since what comes next may begin a little before it ends."""
    for place, span in enumerate(way):
        last = place == len(way) - 1
        began, ended = micros(span["began_s"]), micros(span["ended_s"])
        event = {
            "ph": "s" if place == 0 else "f" if last else "t",
            "id": number,
            "cat": "sample",
            "name": f"sample {sample}",
            "pid": stages[span["stage"]],
            "tid": track(span["replica"]),
            "ts": began + int(share * (ended - began)),
        }
        yield {**event, "bp": "e"} if last else event


def _step_events(files: RunFiles, steps: Sequence[range]) -> Iterator[Event]:
    before = 0
    for step in files.steps:
        began, before = before, micros(step["wall_s"])
        if _is_chosen(step["step"], steps):
            yield {
                "ph": "X",
                "pid": STEPS,
                "tid": 1,
                "cat": "step",
                "name": f"step {step['step']}",
                "ts": began,
                "dur": before - began,
                "args": {key: step[key] for key in ("loss", "samples", "tokens", "packs")},
            }


def _counters(files: RunFiles, window: tuple[float, float]) -> Iterator[Event]:
    for row in files.occupancy.to_pylist():
        pool = row["kind"] == "pool"
        if window[0] <= row["wall_s"] <= window[1]:
            yield {
                "ph": "C",
                "pid": LEVELS,
                "name": f"{row['name']}, {'bytes' if pool else 'rows'}",
                "ts": micros(row["wall_s"]),
                "args": {"bytes": row["num_bytes"]} if pool else {"rows": row["items"]},
            }


def micros(seconds: float) -> int:
    """Whole microseconds, which is how exact spans are: rounded apart, neighbours would overlap."""
    return round(seconds * 1e6)
