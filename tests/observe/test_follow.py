"""A run that goes on, seen through its files alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flowengine.errors import FlowError
from flowengine.observe.event_json import event_json, parse_event
from flowengine.observe.follow import Follower
from flowengine.observe.run_files import RunFiles
from flowengine.observe.status_file import StatusFile, read_status
from flowengine.runtime.events import (
    ChannelStatus,
    CheckpointDone,
    Event,
    PoolStatus,
    Reported,
    Restarted,
    RunFailed,
    RunStarted,
    StageStatus,
    Status,
    StepDone,
)

CHANNEL = ChannelStatus("pages", "eye[0]", "sample", 3, 64, 4096, 2**20)
STATUS = Status(
    2.0,
    (StageStatus("eye", 0, "blocked", "room in the pool", 1.0, 0.5, 0.25, {"a": 1.0}),),
    PoolStatus(1, 2, 3),
    (CHANNEL,),
)
EVENTS: list[Event] = [
    RunStarted("toy", "local", Path("runs/toy"), 3, ("pages", "eye")),
    StepDone(0, 1.0, 0.5, 8, 80, 8, 1, 0.9, None, {"eye": 0}, {"eye": 0.1}),
    StepDone(1, 2.0, float("inf"), 8, 80, 8, 1, 0.9, 2.0, {}, {}),
    Reported("score", 1, 2.0, "accuracy", {"overall": 0.5}),
    CheckpointDone(1, 2.0, Path("runs/toy/checkpoints/step-1")),
    Restarted(1, 2.5, 1, "a worker died"),
    RunFailed(3.0, "no"),
]


def begin(run_dir: Path) -> None:
    """What is there as soon as a run starts."""
    run_dir.mkdir()
    (run_dir / "run.json").write_text('{"config": {"graph": "toy"}, "sketch": {}}')


def append(run_dir: Path, text: str) -> None:
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(text)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_read_back(event: Event) -> None:
    """An event read back from its line is the same event."""
    line = event_json(event)
    assert line is not None
    assert parse_event(json.loads(line)) == event


def test_other_lines_are_no_events() -> None:
    """A line of a kind that this version does not know is passed over."""
    assert parse_event({"event": "weather", "rain": 3}) is None


def test_status_reads_back(tmp_path: Path) -> None:
    """The status read back is the one that was written, and says by whom."""
    assert read_status(tmp_path) is None
    StatusFile(tmp_path).write(STATUS)
    found = read_status(tmp_path)
    assert found is not None
    assert found[0] == STATUS
    assert found[1]["pid"] == os.getpid()


def test_status_is_not_written_too_often(tmp_path: Path) -> None:
    """Looks that follow each other closely replace the file once."""
    file = StatusFile(tmp_path)
    file.write(STATUS)
    file.write(Status(2.1, (), PoolStatus(0, 0, 0)))
    found = read_status(tmp_path)
    assert found is not None
    assert found[0].wall_s == 2.0


def test_half_of_a_status(tmp_path: Path) -> None:
    """Half of a write is nothing to read; a shorter text leaves nothing of a longer one."""
    file = StatusFile(tmp_path)
    file.write(STATUS)
    shorter = Status(9.0, (), PoolStatus(0, 0, 0))
    file.write(shorter)
    found = read_status(tmp_path)
    assert found is not None
    assert found[0] == shorter
    path = tmp_path / "status.json"
    path.write_text(path.read_text()[:40])
    assert read_status(tmp_path) is None


def test_following(tmp_path: Path) -> None:
    """Lines are taken in as they come, half of a line not before its other half."""
    run_dir = tmp_path / "run"
    begin(run_dir)
    follower = Follower(run_dir)
    follower.look()
    assert follower.state == "starting"
    lines = [f"{event_json(event)}\n" for event in EVENTS[:3]]
    append(run_dir, lines[0] + lines[1] + lines[2][:20])
    StatusFile(run_dir).write(STATUS)
    follower.look()
    assert (follower.state, len(follower.tally.steps)) == ("running", 1)
    append(run_dir, lines[2][20:])
    follower.look()
    assert len(follower.tally.steps) == 2
    snapshot = follower.snapshot()
    assert (snapshot["steps"], snapshot["of_steps"], snapshot["state"]) == (2, 3, "running")


def test_a_run_whose_process_is_gone(tmp_path: Path) -> None:
    """A run that was killed is over, though it left no report."""
    run_dir = tmp_path / "run"
    begin(run_dir)
    StatusFile(run_dir).write(STATUS)
    path = run_dir / "status.json"
    path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', '"pid": 4194304'))
    follower = Follower(run_dir)
    follower.look()
    assert (follower.state, follower.is_over) == ("gone", True)


def test_a_run_that_is_over(finished: Path) -> None:
    """The report's status is the state, and all steps are known."""
    follower = Follower(finished)
    follower.look()
    assert (follower.state, len(follower.tally.steps)) == ("done", 6)


def test_steps_that_were_trained_again(tmp_path: Path) -> None:
    """After a restart the steps from there on count once: as they were the last time."""
    run_dir = tmp_path / "run"
    begin(run_dir)
    first, again = EVENTS[1:3], [Restarted(1, 2.5, 1, "a worker died"), EVENTS[2]]
    append(run_dir, "".join(f"{event_json(event)}\n" for event in [*first, *again]))
    assert [step["step"] for step in RunFiles(run_dir).steps] == [0, 1]
    follower = Follower(run_dir)
    follower.look()
    assert len(follower.tally.steps) == 2


def test_not_a_run(tmp_path: Path) -> None:
    """A directory that no run wrote is refused by name."""
    with pytest.raises(FlowError, match=r"has no run.json; expected the directory of a run"):
        RunFiles(tmp_path)


def test_tables_that_are_not_complete(finished: Path, tmp_path: Path) -> None:
    """Tables of a run that was killed read as empty ones."""
    (tmp_path / "run.json").write_bytes((finished / "run.json").read_bytes())
    (tmp_path / "spans.parquet").write_bytes(b"PAR1")
    files = RunFiles(tmp_path)
    assert (files.spans.num_rows, files.packs.num_rows) == (0, 0)
