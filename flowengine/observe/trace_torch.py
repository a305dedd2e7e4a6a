"""What torch's profiler noted of chosen steps, as events of the run's trace.

Each worker's threads and streams get tracks of their own, below its stage's; times become those of
the run. What belongs to no thread or stream (PyTorch's summary of the profile) is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flowengine.observe.run_files import RunFiles
from flowengine.runtime.profiler import FOLDER, METADATA

TOGETHER = 5
"""Process id of operators and kernels where all stages were in one process."""

TRACKS = 1000
"""Thread ids per replica: its own track, and those of its threads and streams."""

Event = dict[str, Any]


def torch_events(
    files: RunFiles, stages: Mapping[str, int], window: tuple[float, float]
) -> Iterator[Event]:
    """The events between these seconds. stages: process ids by the stage's name."""
    tracks = _Tracks(stages)
    first_id = 1 << 32
    for path in sorted((files.run_dir / FOLDER).glob("*.json")):
        last_id = first_id
        for event in _events(path, window):
            last_id = max(last_id, first_id + event.get("id", 0))
            yield tracks.place(event, first_id)
        first_id = last_id + 1
    yield from tracks.names()


def _events(path: Path, window: tuple[float, float]) -> Iterator[Event]:
    """What the threads and streams of one file did, in the run's time: operators, kernels, copies
    and their arrows; with the labels of the file's stages under "stages"."""
    profile = json.loads(path.read_text(encoding="utf-8"))
    known = profile[METADATA]
    offset_us = (profile["baseTimeNanoseconds"] - known["run_began_ns"]) / 1e3
    for event in profile["traceEvents"]:
        if event["ph"] not in "Xsf" or event.get("cat") == "Trace":
            continue
        ts_us = event["ts"] + offset_us
        if window[0] * 1e6 <= ts_us <= window[1] * 1e6:
            yield {**event, "ts": round(ts_us, 3), "stages": known["stages"]}


class _Tracks:
    """Places for the threads and streams of all workers, in the order in which they turn up."""

    def __init__(self, stages: Mapping[str, int]) -> None:
        self._stages = stages
        self._found: dict[tuple[Any, ...], tuple[int, int, str]] = {}

    def place(self, event: Event, first_id: int) -> Event:
        """The event on its track; the ids of its file's arrows begin at `first_id`."""
        labels = tuple(event.pop("stages"))
        key = (labels, event["pid"], event["tid"])
        if key not in self._found:
            self._found[key] = self._new_track(labels, event)
        pid, tid, _ = self._found[key]
        identity = {"id": first_id + event["id"]} if "id" in event else {}
        return {**event, "pid": pid, "tid": tid, **identity}

    def names(self) -> Iterator[Event]:
        """What the tracks are called."""
        if any(pid == TOGETHER for pid, _, _ in self._found.values()):
            yield {"ph": "M", "pid": TOGETHER, "name": "process_name", "args": {"name": "torch"}}
        for pid, tid, name in self._found.values():
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}

    def _new_track(self, labels: tuple[str, ...], event: Event) -> tuple[int, int, str]:
        if len(labels) > 1:
            pid, first, label = TOGETHER, TRACKS, "torch"
        else:
            name, _, replica = labels[0].partition("[")
            pid, label = self._stages[name], labels[0]
            first = TRACKS * (1 + int(replica.rstrip("]") or 0))
        taken = sum(p == pid and t // TRACKS == first // TRACKS for p, t, _ in self._found.values())
        return pid, first + taken, f"{label} {_track_name(event)}"


def _track_name(event: Event) -> str:
    arguments = event.get("args", {})
    if "stream" in arguments:
        return f"GPU {arguments.get('device', 0)} stream {arguments['stream']}"
    return f"thread {event['tid']}"
