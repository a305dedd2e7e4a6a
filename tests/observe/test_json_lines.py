"""Events as JSON lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from flowengine.observe import JsonLines
from flowengine.observe.event_json import dump_json, event_json
from flowengine.runtime.events import PoolStatus, Reported, RunFailed, RunStarted, Status


def test_events_and_report() -> None:
    """What is worth keeping is a line each; looks at the stages are not; the report comes last."""
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines(RunStarted("toy", "inline", Path("runs/toy"), 3, ("a", "b")))
    lines(Status(1.0, (), PoolStatus(0, 0, 1)))
    lines(RunFailed(2.0, "no"))
    lines.finish({"status": "failed", "error": "no"})
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {
            "event": "run_started",
            "graph": "toy",
            "runtime": "inline",
            "run_dir": "runs/toy",
            "steps": 3,
            "stages": ["a", "b"],
        },
        {"event": "run_failed", "wall_s": 2.0, "error": "no"},
        {"event": "failed", "report": {"status": "failed", "error": "no"}},
    ]


class Closed(io.StringIO):
    """A stream whose reader went away after `left` lines."""

    left = 1

    def write(self, text: str) -> int:
        if not self.left:
            raise BrokenPipeError
        self.left -= 1
        return super().write(text)


def test_reader_went_away() -> None:
    """A closed pipe ends the lines, not the run."""
    stream = Closed()
    lines = JsonLines(stream)
    for number in range(3):
        lines(Reported("a", number, 1.0, "x", number))
    lines.finish({"status": "done"})
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array([1, 2]), [1, 2]),
        (torch.tensor(2.0), 2.0),
        ((1, "a", None, True), [1, "a", None, True]),
        ({1: {"b": 2}}, {"1": {"b": 2}}),
        (Path("a/b"), "a/b"),
        ({3}, "{3}"),
    ],
)
def test_values(value: object, expected: object) -> None:
    """Whatever an operator reports becomes JSON."""
    line = event_json(Reported("a", 1, 1.0, "x", value))
    assert line is not None
    assert json.loads(line)["value"] == expected


def test_not_finite_inside() -> None:
    """A number that is not finite is named by its path, wherever it is."""
    text = dump_json({"a": [1.0, {"b": float("inf")}], "c": np.float32("nan")})
    assert json.loads(text) == {
        "a": [1.0, {"b": None}],
        "c": None,
        "non_finite": {"a.1.b": "inf", "c": "nan"},
    }
