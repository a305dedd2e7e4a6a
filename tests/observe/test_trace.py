"""The trace of a run, by the rules of the Trace Event Format."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flowengine.observe.run_files import RunFiles
from flowengine.observe.trace import make_trace


@pytest.fixture(scope="module")
def events(finished: Path) -> list[dict[str, Any]]:
    trace = json.loads(json.dumps(make_trace(RunFiles(finished)), allow_nan=False))
    found: list[dict[str, Any]] = trace["traceEvents"]
    return found


def of(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


def test_a_track_per_replica(events: list[dict[str, Any]]) -> None:
    """Stages are processes, replicas threads, and all that happens is on one of them."""
    names = {
        event["args"]["name"]
        for event in of(events, "M")
        if event["name"] in ("process_name", "thread_name")
    }
    assert {"steps", "encoder", "encoder[0]", "encoder[1]", "model"} <= names
    named = {(e["pid"], e["tid"]) for e in of(events, "M") if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in of(events, "X") if e["cat"] != "step"} <= named


def test_arrows(events: list[dict[str, Any]]) -> None:
    """Every pack has one arrow, from its reading on, whose points lie in the work they tie."""
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf" and event.get("cat") == "pack":
            flows[event["id"]].append(event)
    assert len(flows) >= 6
    slices = [event for event in of(events, "X") if event["cat"] == "work"]
    for points in flows.values():
        assert [p["ph"] for p in points] == ["s", *"t" * (len(points) - 2), "f"]
        assert [p["ts"] for p in points] == sorted(p["ts"] for p in points)
        for point in points:
            assert any(
                (s["pid"], s["tid"]) == (point["pid"], point["tid"])
                and s["ts"] - 1 <= point["ts"] <= s["ts"] + s["dur"] + 1
                for s in slices
            )


def test_steps_and_counters(events: list[dict[str, Any]]) -> None:
    """Steps follow each other without a gap; counters are of the pool and of channels."""
    steps = [event for event in of(events, "X") if event["cat"] == "step"]
    assert [step["name"] for step in steps] == [f"step {number}" for number in range(6)]
    for before, after in pairwise(steps):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=0.3)
