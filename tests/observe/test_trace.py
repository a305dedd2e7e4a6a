"""The trace of a run, by the rules of the Trace Event Format."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flowengine.errors import FlowError
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


def test_arrows(finished: Path, events: list[dict[str, Any]]) -> None:
    """Every sample has one arrow, from its reading on, whose points lie in work on its pack, one
    after the other."""
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    packs = RunFiles(finished).packs.to_pylist()
    samples = [f"sample {sample}" for pack in packs for sample in pack["sample_ids"]]
    assert sorted(points[0]["name"] for points in flows.values()) == sorted(samples)
    assert len(samples) == sum(pack["samples"] for pack in packs) > 6 * 8
    slices = [event for event in of(events, "X") if event["cat"] == "work"]
    for points in flows.values():
        assert [p["ph"] for p in points] == ["s", *"t" * (len(points) - 2), "f"]
        assert [p["ts"] for p in points] == sorted(p["ts"] for p in points)
        assert {(p["cat"], p["name"]) for p in points} == {("sample", points[0]["name"])}
        for point in points:
            assert any(
                (s["pid"], s["tid"]) == (point["pid"], point["tid"])
                and s["ts"] <= point["ts"] <= s["ts"] + s["dur"]
                for s in slices
            )


def test_a_track_has_no_overlaps(events: list[dict[str, Any]]) -> None:
    """What follows on a track begins no earlier than what was before has ended, to the last digit:
    a viewer would take it for a part of it."""
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in of(events, "X"):
        tracks[event["pid"], event["tid"]].append(event)
    for slices in tracks.values():
        slices.sort(key=lambda event: event["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(slices))


def test_some_steps(finished: Path, events: list[dict[str, Any]]) -> None:
    """Of chosen steps everything is there, of others nothing."""
    some = make_trace(RunFiles(finished), steps=[range(2, 4)])["traceEvents"]
    in_steps = [e for e in of(events, "X") if e["cat"] != "step" and e["args"]["step"] in (2, 3)]
    assert [e for e in of(some, "X") if e["cat"] != "step"] == in_steps
    assert [e["name"] for e in of(some, "X") if e["cat"] == "step"] == ["step 2", "step 3"]
    window = (min(e["ts"] for e in in_steps), max(e["ts"] + e["dur"] for e in in_steps))
    assert all(window[0] <= e["ts"] <= window[1] for e in some if e["ph"] in "Cstf")


def test_steps_that_are_not_there(finished: Path) -> None:
    """Steps that the run does not have are an error that says which it has."""
    with pytest.raises(FlowError, match="no spans of these steps; it has spans of steps 0 to 6"):
        make_trace(RunFiles(finished), steps=[range(90, 91)])


def test_steps_and_counters(events: list[dict[str, Any]]) -> None:
    """Steps follow each other without a gap; counters are of the pool and of channels."""
    steps = [event for event in of(events, "X") if event["cat"] == "step"]
    assert [step["name"] for step in steps] == [f"step {number}" for number in range(6)]
    for before, after in pairwise(steps):
        assert before["ts"] + before["dur"] == after["ts"]
