"""What stages did when, and how full the channels were."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes import small_graph

from flowengine import check
from flowengine.runtime import Runtime, execute
from flowengine.runtime.events import Event, PackRows, RunDone, SpanRows
from flowengine.runtime.spans import ROWS, SpanLog, Work, is_kept

FORWARD = Work("forward", 3, False, 1)


def test_neighbours_are_one_span() -> None:
    """Pieces of one kind that follow each other are one span; of another kind, another."""
    log = SpanLog()
    log.add("busy", FORWARD, 1.0, 1.1)
    log.add("busy", FORWARD, 1.1001, 1.2)
    log.add("busy", Work("backward", 3, False, 1), 1.2, 1.5)
    spans = log.take(2.0)
    assert spans["what"] == ["forward", "backward"]
    assert (spans["began_s"], spans["ended_s"]) == ([1.0, 1.2], [1.2, 1.5])


def test_short_waits_are_left_out() -> None:
    """A wait of less than a millisecond is no span, and does not part the work around it."""
    log = SpanLog()
    log.add("busy", FORWARD, 1.0, 1.1)
    log.add("starved", Work("rows", 3), 1.1, 1.1005)
    log.add("busy", FORWARD, 1.1005, 1.2)
    log.add("starved", Work("rows", 3), 1.2, 1.3)
    assert log.take(2.0)["state"] == ["busy", "starved"]


@pytest.mark.parametrize(("step", "kept"), [(0, 1), (999, 1), (1001, 0), (1010, 1), (20_100, 1)])
def test_which_steps_are_kept(step: int, kept: int) -> None:
    """All early steps are kept, later ones ever more seldom."""
    assert is_kept(step) == bool(kept)
    log = SpanLog()
    log.add("busy", Work("forward", step), 1.0, 1.1)
    assert len(log.take(2.0)["state"]) == kept


def test_memory_is_bounded() -> None:
    """The log asks to be emptied when it is full, and is empty afterwards."""
    log = SpanLog()
    for number in range(ROWS + 1):
        log.add("busy", Work("forward", 0, False, number), number, number + 0.5)
    assert log.is_due(0.1)
    assert len(log.take(0.1)["state"]) == ROWS + 1
    assert not log.is_due(0.2)
    assert log.take(0.2)["state"] == []


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_every_pack_leaves_its_spans(tmp_path: Path, runtime: Runtime) -> None:
    """Every pack's way is in the spans from read to backward, without overlap in a replica, and
    the busy times add up to those of the status."""
    graph = small_graph(steps=3, evaluate=8, replicas=2)
    check(graph)
    events: list[Event] = []
    execute(graph, runtime=runtime, run_dir=tmp_path, observe=events.append)
    rows = [row for event in events if isinstance(event, SpanRows) for row in spans_of(event)]
    packs = {
        key
        for event in events
        if isinstance(event, PackRows)
        for key in zip(*(event.columns[n] for n in ("step", "held_out", "pack")), strict=True)
    }
    assert len({held_out for _, held_out, _ in packs}) == 2
    for step, held_out, pack in packs:
        found = {r["what"] for r in rows if place(r) == (step, held_out, pack)}
        trained = {"train", "backward"}
        assert {"read", "forward", "join"} <= found
        assert found & {*trained, "answer"} == ({"answer"} if held_out else trained)
    for worker in {(row["stage"], row["replica"]) for row in rows}:
        mine = [row for row in rows if (row["stage"], row["replica"]) == worker]
        assert all(b["began_s"] >= a["ended_s"] - 1e-6 for a, b in pairwise(mine))
    (done,) = (event for event in events if isinstance(event, RunDone))
    for stage in done.status.stages:
        mine = [r for r in rows if (r["stage"], r["replica"]) == (stage.stage, stage.replica)]
        busy = sum(row["ended_s"] - row["began_s"] for row in mine if row["state"] == "busy")
        assert busy == pytest.approx(stage.busy_s, abs=0.05, rel=0.1)
    names = [(c.producer, c.consumer) for c in done.status.channels]
    assert ("encoder[1]", "packer") in names
    assert all(c.items == 0 < c.bound_items for c in done.status.channels)


def spans_of(event: SpanRows) -> list[dict[str, Any]]:
    names = list(event.columns)
    rows = zip(*event.columns.values(), strict=True)
    whose = {"stage": event.stage, "replica": event.replica}
    return [{**whose, **dict(zip(names, row, strict=True))} for row in rows]


def place(row: dict[str, Any]) -> tuple[int, bool, int]:
    return row["step"], row["held_out"], row["pack"]
