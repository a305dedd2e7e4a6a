"""A run's spans as a trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

Format: "Trace Event Format", JSON object form. A process per stage, a thread per replica; work as
complete events ("X"), waiting as well, in a category of its own; a flow ("s", "t", "f") per pack,
from its reading to its backward; counters ("C") of the pool and the channels; and the steps. Times
are in microseconds since the run started.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from flowengine.observe.run_files import RunFiles

STEPS, LEVELS = 1, 2
"""Process ids of the steps' track and of the counters; stages follow from FIRST."""

FIRST = 10


def make_trace(files: RunFiles) -> dict[str, Any]:
    """The trace of a run that is over."""
    stages = {name: FIRST + index for index, name in enumerate(files.config["stages"])}
    spans = files.spans.to_pylist()
    events = [
        *_names(files, stages),
        *(_span_event(span, stages) for span in spans),
        *_flows(spans, stages),
        *_step_events(files),
        *_counters(files),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"graph": files.config["graph"], "run_dir": str(files.run_dir)},
    }


def _names(files: RunFiles, stages: dict[str, int]) -> Iterator[dict[str, Any]]:
    named = {STEPS: "steps", LEVELS: "pool and channels"}
    for order, (pid, name) in enumerate([*named.items(), *((p, n) for n, p in stages.items())]):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": order}}
    for name, pid in stages.items():
        for replica in range(files.config["stages"][name]["replicas"]):
            label = {"name": f"{name}[{replica}]"}
            yield {"ph": "M", "pid": pid, "tid": replica, "name": "thread_name", "args": label}


def _span_event(span: dict[str, Any], stages: dict[str, int]) -> dict[str, Any]:
    busy = span["state"] == "busy"
    event = {
        "ph": "X",
        "pid": stages[span["stage"]],
        "tid": span["replica"],
        "cat": "work" if busy else "wait",
        "name": span["what"] if busy else f"{span['state']}: {span['what']}",
        "ts": _us(span["began_s"]),
        "dur": _us(span["ended_s"] - span["began_s"]),
        "args": {"step": span["step"], "held_out": span["held_out"]},
    }
    if span["pack"] >= 0:
        event["args"]["pack"] = span["pack"]
    return event


def _flows(spans: list[dict[str, Any]], stages: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Arrows from each piece of work on a pack to the next one, by their beginnings."""
    packs: dict[tuple[int, bool, int], list[dict[str, Any]]] = defaultdict(list)
    for span in spans:
        if span["pack"] >= 0 and span["state"] == "busy":
            packs[span["step"], span["held_out"], span["pack"]].append(span)
    for number, ((step, held_out, pack), way) in enumerate(sorted(packs.items())):
        way.sort(key=lambda span: span["began_s"])
        if len(way) < 2:
            continue
        name = f"{'held out' if held_out else 'step'} {step} pack {pack}"
        for place, span in enumerate(way):
            last = place == len(way) - 1
            event = {
                "ph": "s" if place == 0 else "f" if last else "t",
                "id": number,
                "cat": "pack",
                "name": name,
                "pid": stages[span["stage"]],
                "tid": span["replica"],
                "ts": _us((span["began_s"] + span["ended_s"]) / 2),
            }
            yield {**event, "bp": "e"} if last else event


def _step_events(files: RunFiles) -> Iterator[dict[str, Any]]:
    before = 0.0
    for step in files.steps:
        yield {
            "ph": "X",
            "pid": STEPS,
            "tid": 0,
            "cat": "step",
            "name": f"step {step['step']}",
            "ts": _us(before),
            "dur": _us(step["wall_s"] - before),
            "args": {key: step[key] for key in ("loss", "samples", "tokens", "packs")},
        }
        before = step["wall_s"]


def _counters(files: RunFiles) -> Iterator[dict[str, Any]]:
    for row in files.occupancy.to_pylist():
        pool = row["kind"] == "pool"
        yield {
            "ph": "C",
            "pid": LEVELS,
            "name": "pool, bytes" if pool else f"{row['name']}, rows",
            "ts": _us(row["wall_s"]),
            "args": {"bytes": row["num_bytes"]} if pool else {"rows": row["items"]},
        }


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)
