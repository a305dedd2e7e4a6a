"""Signals, --resume and inspect, as a person at a terminal meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fakes import small_graph
from running import run_graph

from flowengine.checkpoint import find_checkpoint
from flowengine.cli.main import main

FILE = """\
from fakes import small_graph

def build(*, steps: int = 8, every: int = 3):
    graph = small_graph(steps=steps)
    if every:
        graph.checkpoint(every=every)
    return graph
"""
TESTS = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a graph file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.py").write_text(FILE)
    return tmp_path


def losses(run_dir: Path) -> list[float]:
    report: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
    found: list[float] = report["losses"]
    return found


def run_inline(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["run", "graph.py", "--runtime", "inline", *arguments])


def test_resume_goes_on_behind_the_newest(folder: Path) -> None:
    """Without a path, --resume finds the newest run of this graph; it says where it goes on."""
    assert run_inline("steps=7").exit_code == 0
    result = run_inline("--run-dir", "again", "--resume")
    assert result.exit_code == 0
    assert "resuming runs/small-" in result.stderr
    assert "step-00000007" in result.stderr
    assert len(losses(folder / "again")) == 1


def test_resume_without_a_run(folder: Path) -> None:
    """Exit code 6 and what to do."""
    result = run_inline("--resume")
    assert result.exit_code == 6
    assert "runs: holds no run of graph 'small' with a checkpoint; pass --resume" in result.stderr
    assert not (folder / "runs").exists()


def test_inspect_prints_what_is_there(tmp_path: Path) -> None:
    """Steps, stages and sizes; damage is an error with exit code 6."""
    graph = small_graph(steps=2)
    graph.checkpoint()
    run_graph(graph, tmp_path)
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path)])
    assert shown.exit_code == 0
    assert "graph 'small' after 2 steps" in shown.output
    assert "every checksum right" in shown.output
    found = json.loads(CliRunner().invoke(main, ["inspect", "--json", str(tmp_path)]).output)
    assert found["parts"]["encoder"]["weights"] == sum(
        p.numel()
        for p in graph.stage("encoder").what.build().parameters()  # type: ignore[union-attr]
    )
    part = find_checkpoint(tmp_path) / "model.safetensors"
    damaged = bytearray(part.read_bytes())
    damaged[-1] ^= 4
    part.write_bytes(damaged)
    refused = CliRunner().invoke(main, ["inspect", str(tmp_path)])
    assert refused.exit_code == 6
    assert "of 'model' is not what was written" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "number"), [("inline", signal.SIGTERM), ("local", signal.SIGINT)]
)
def test_a_signal_ends_the_run_at_a_barrier(
    runtime: str, number: signal.Signals, folder: Path
) -> None:
    """One signal: a checkpoint, exit code 130, and a resumed run with the same losses."""
    process = start(folder, "steps=2000", "every=0", "--runtime", runtime, "--run-dir", "cut")
    wait_for_steps(folder / "cut", 5)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    done = len(losses(folder / "cut"))
    assert f"error: interrupted after {done} steps; go on with --resume cut" in told
    assert json.loads((folder / "cut" / "report.json").read_text())["status"] == "interrupted"
    assert find_checkpoint(folder / "cut").name == f"step-{done:08d}"
    more = done + 3
    assert run_inline(f"steps={more}", "--resume", "cut", "--run-dir", "again").exit_code == 0
    assert run_inline(f"steps={more}", "--run-dir", "whole").exit_code == 0
    assert losses(folder / "whole") == losses(folder / "cut") + losses(folder / "again")


@pytest.mark.slow
def test_a_second_signal_ends_the_run_now(folder: Path) -> None:
    """Two signals: no waiting for the step, the same exit code, no process left."""
    process = start(folder, "steps=100000", "--run-dir", "cut")
    wait_for_steps(folder / "cut", 2)
    os.kill(process.pid, signal.SIGSTOP)  # so that both are there before anything is done
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    os.kill(process.pid, signal.SIGCONT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "error: interrupted\n" in told


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(TESTS), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-m", "flowengine", "run", "graph.py", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_steps(run_dir: Path, steps: int) -> None:
    """Until the run has trained so many."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        metrics = run_dir / "metrics.jsonl"
        if metrics.exists() and metrics.read_text().count('"event": "step"') >= steps:
            return
        time.sleep(0.02)
    raise AssertionError(f"{run_dir}: not {steps} steps in 60 s")
