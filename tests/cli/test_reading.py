"""The commands that read a run directory: top, report, compare, trace, and draw --run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowengine.cli.main import main
from flowengine.observe.progress import Screen
from flowengine.observe.status_file import StatusFile
from flowengine.runtime.events import PoolStatus, StageStatus, Status

pytestmark = pytest.mark.slow


def flowengine(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def running(finished: Path, tmp_path: Path) -> Path:
    """A run directory as it is while this process supervises a run."""
    for name in ("run.json", "metrics.jsonl"):
        shutil.copy(finished / name, tmp_path)
    stage = StageStatus("encoder", 0, "blocked", "room in the pool", 1.0, 2.0, 3.0)
    StatusFile(tmp_path).write(Status(9.0, (stage,), PoolStatus(1, 2, 2**20)))
    return tmp_path


def test_report(finished: Path) -> None:
    """report draws the page again and names the bottleneck; with --json it is report.json."""
    before = (finished / "report.html").read_text()
    (finished / "report.html").unlink()
    lines = flowengine("report", finished).stdout.splitlines()
    assert lines[0] == "done: 6 steps"
    assert lines[-1] == str(finished / "report.html")
    assert (finished / "report.html").read_text() == before
    printed = json.loads(flowengine("report", finished, "--json").stdout)
    assert printed == json.loads((finished / "report.json").read_text())


def test_compare(finished: Path, failed: Path, tmp_path: Path) -> None:
    """compare has figures, their quotient, and the settings that differ; as text, JSON or page."""
    compared = json.loads(flowengine("compare", finished, failed, "--json").stdout)
    assert compared["figures"]["steps"] == {"values": [6, 0], "quotient": 0.0}
    assert compared["figures"]["last loss"]["quotient"] is None
    assert compared["settings"]["steps"] == [6, 4]
    assert compared["settings"]["stages.encoder.replicas"] == [2, 1]
    assert "created" not in compared["settings"]
    text = flowengine("compare", finished, failed).stdout
    assert ["status", "done", "failed"] in [line.split() for line in text.splitlines()]
    page = tmp_path / "both.html"
    assert flowengine("compare", finished, failed, "-o", page).exit_code == 0
    assert page.read_text().startswith("<!doctype html>")


def test_a_run_is_as_itself(finished: Path) -> None:
    """A run compared with itself differs in nothing."""
    compared = json.loads(flowengine("compare", finished, finished, "--json").stdout)
    assert compared["settings"] == {}
    quotients = {figure["quotient"] for figure in compared["figures"].values()}
    assert quotients <= {1.0, None}


def test_trace(finished: Path, tmp_path: Path) -> None:
    """trace writes JSON where it is told to."""
    path = tmp_path / "trace.json"
    assert flowengine("trace", finished, "-o", path).stdout.strip() == str(path)
    assert len(json.loads(path.read_text())["traceEvents"]) > 100
    some = json.loads(flowengine("trace", finished, "--steps", "2-3", "--json").stdout)
    assert 20 < len(some["traceEvents"]) < len(json.loads(path.read_text())["traceEvents"])


WRITING = ("export", "new")


@pytest.mark.parametrize("command", sorted(set(main.commands) - set(WRITING)))
def test_json_everywhere(command: str) -> None:
    """Every verb but those that only write files tells programs what it tells people."""
    assert "--json" in flowengine(command, "--help").stdout


def test_draw_a_run(finished: Path, tmp_path: Path) -> None:
    """draw --run says how busy the stages were, as text, as JSON and as a picture."""
    drawn = json.loads(flowengine("draw", "--run", finished, "--json").stdout)
    assert sum(stage["name"] in drawn["busy"] for stage in drawn["stages"]) == 5
    assert "bottleneck" in drawn
    text = flowengine("draw", "--run", finished).stdout
    assert text.startswith("flowchart LR\n")
    assert text.count("% busy") == 5
    path = tmp_path / "run.svg"
    assert flowengine("draw", "--run", finished, "-o", path).exit_code == 0
    assert path.read_text().count("% busy") == 5


def test_top_of_a_running_run(running: Path) -> None:
    """Without a terminal top shows one look; with --json the same for programs."""
    text = flowengine("top", running).stdout
    assert "step 6/6" in text
    assert "room in the pool" in text
    now = json.loads(flowengine("top", running, "--json").stdout)
    assert (now["state"], now["steps"], now["of_steps"]) == ("running", 6, 6)
    assert now["status"]["stages"][0]["waits_for"] == "room in the pool"


def test_top_follows_to_the_end(
    finished: Path, running: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal top goes on until there is a report."""

    def end(seconds: float) -> None:
        assert seconds > 0
        shutil.copy(finished / "report.json", running)

    monkeypatch.setattr("flowengine.cli.watch.time.sleep", end)
    monkeypatch.setattr(Screen, "is_terminal", True)
    result = flowengine("top", running)
    assert result.exit_code == 0
    assert "this run is over: done" in result.stdout


def test_top_of_a_killed_run(running: Path) -> None:
    """Of a run whose process is gone top says so."""
    path = running / "status.json"
    path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', '"pid": 4194304'))
    assert "this run is over: gone" in flowengine("top", running).stdout


@pytest.mark.parametrize("command", ["top", "report", "trace"])
def test_no_run_directory(command: str, tmp_path: Path) -> None:
    """A directory that no run wrote is an error with its name, not a traceback."""
    result = flowengine(command, tmp_path)
    assert result.exit_code == 1
    assert f"error: {tmp_path}: has no run.json; expected the directory of a run" in result.stderr


def test_report_of_a_running_run(running: Path) -> None:
    """There is no report before the end, and it is said why."""
    result = flowengine("report", running)
    assert result.exit_code == 1
    assert "has no report.json; expected the directory of a run that is over" in result.stderr
