"""A run that does not go on says who waits for whom, and where the root cause is stuck."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import MixedSamples, small_graph
from running import run_graph
from stalls import judge

from flowengine import check
from flowengine.api import Sample
from flowengine.errors import StallError
from flowengine.runtime import execute
from flowengine.runtime.events import ChannelStatus, PoolStatus, StageStatus, State, Status
from flowengine.runtime.stall import (
    describe_stall,
    find_dependencies,
    is_stopped,
    look_closer,
    root_causes,
)

KNOWN = find_dependencies(small_graph(evaluate=4))


def stage(name: str, state: State, on: str = "") -> StageStatus:
    return StageStatus(name, 0, state, on, 0.0, 0.0, 0.0, since_s=10.0, in_hand=(4, 7))


def status(*stages: StageStatus) -> Status:
    return Status(31.0, stages, PoolStatus(0, 0, 1))


def test_all_wait_for_the_one_at_work() -> None:
    """The stage at work comes first, with its samples; the others say for whom they wait."""
    told = describe_stall(
        status(
            stage("source", "blocked", "credits of 'encoder'"),
            stage("encoder", "blocked", "returning gradients"),
            stage("packer", "starved", "image"),
            stage("model", "busy"),
            stage("accuracy", "starved", "rows from model"),
        ),
        KNOWN,
    )
    assert told.splitlines() == [
        "everybody waits for model[0]:",
        "  model[0] is busy for 21 s with samples 4, 7 in hand",
        "  source[0] is blocked for 21 s, waiting for credits of 'encoder', that is for encoder",
        "  encoder[0] is blocked for 21 s, waiting for returning gradients, that is for model",
        "  packer[0] is starved for 21 s, waiting for image, that is for source and encoder",
        "  accuracy[0] is starved for 21 s, waiting for rows from model, that is for model",
    ]


@pytest.mark.parametrize(
    ("waits", "causes"),
    [
        (
            {
                "source": ("blocked", "credits of 'encoder'"),
                "encoder": ("blocked", "room in the pool"),
                "packer": ("starved", "image"),
                "model": ("starved", "packs"),
            },
            {"source", "encoder", "packer", "model"},
        ),
        (
            {
                "source": ("done", ""),
                "encoder": ("blocked", "the other stages' gradients"),
                "packer": ("done", ""),
                "model": ("blocked", "the other stages' gradients"),
            },
            {"encoder", "model"},
        ),
        (
            {
                "source": ("blocked", "credits of 'packer'"),
                "encoder": ("starved", "samples"),
                "packer": ("starved", "image"),
                "model": ("starved", "packs"),
            },
            {"source", "encoder", "packer"},
        ),
    ],
)
def test_a_circle_is_the_cause(waits: dict[str, tuple[State, str]], causes: set[str]) -> None:
    """Where nobody is at work, who waits for himself in the end is to blame, and nobody else."""
    now = status(
        *(stage(name, *wait) for name, wait in waits.items()),
        stage("accuracy", "starved", "rows from model"),
    )
    assert {cause.stage for cause in root_causes(now, KNOWN)} == causes
    assert describe_stall(now, KNOWN).startswith("nobody is at work; the root cause is at ")


class StuckSource(MixedSamples):
    """Never gives sample 12."""

    def read(self, index: int) -> Sample:
        if index == 12:
            threading.Event().wait()
        return super().read(index)


@pytest.mark.slow
def test_stuck_code_is_found(tmp_path: Path) -> None:
    """A stage that never comes back from its operator is the root cause; stall.txt holds the stack
    that says where it is."""
    run_graph(small_graph(steps=1), tmp_path / "warm")  # compiles what the packer calls
    graph = small_graph(steps=4)
    graph.stage("source").what = StuckSource()
    check(graph)
    with pytest.raises(StallError) as caught:
        execute(graph, runtime="local", run_dir=tmp_path, observe=lambda _: None, stall_s=0.4)
    told = str(caught.value)
    assert told.startswith("everybody waits for source[0]:\n  source[0] is busy for ")
    assert "with samples 12 in hand" in told.splitlines()[1]
    assert re.search(r"model\[0\] is starved .* waiting for packs, that is for packer", told)
    kept = (tmp_path / "stall.txt").read_text()
    assert re.search(r"source:\n(.*\n)+.*(test_stall.py\", line \d+ in read|read \(.*stall)", kept)
    assert not (tmp_path / "stacks").exists()


RUN = """
import sys
from pathlib import Path
from typing import Any
from test_stall import StuckSource
from fakes import small_graph
from flowengine import launch

graph = small_graph(steps=4)
graph.stage("source").what = StuckSource()
if __name__ == "__main__":
    launch.run(graph, run_dir=Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_explain_a_run_from_outside(tmp_path: Path) -> None:
    """`flowengine explain` tells of a stuck run while it runs, and of it dead."""
    (tmp_path / "stuck.py").write_text(RUN)
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *sys.path])
    run = subprocess.Popen(
        [sys.executable, str(tmp_path / "stuck.py"), str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        found = explain_until(tmp_path / "run", "source[0]")
        assert found["state"] == "running"
        assert "in read" in found["stacks"]["source"]
    finally:
        run.kill()
        run.wait()
    stuck = json.loads((tmp_path / "run" / "status.json").read_text())["stages"][0]["pid"]
    deadline = time.monotonic() + 2.0
    while Path(f"/proc/{stuck}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{stuck}").exists(), "a stuck worker outlived its supervisor"
    dead = explain_until(tmp_path / "run", "source[0]")
    assert dead["state"].startswith("dead")
    assert not dead["stacks"]


def explain_until(run_dir: Path, cause: str) -> dict[str, Any]:
    """What explain says once it names this cause alone."""
    deadline = time.monotonic() + 30
    told = None
    while time.monotonic() < deadline:
        if (run_dir / "status.json").exists():
            command = [sys.executable, "-m", "flowengine", "explain", "--json", str(run_dir)]
            told = subprocess.run(command, capture_output=True, text=True, check=True)
            found: dict[str, Any] = json.loads(told.stdout)
            if found["causes"] == [cause]:
                return found
        time.sleep(0.1)
    raise AssertionError(told)


def test_a_stopped_process_is_the_cause() -> None:
    """Whatever a worker last said of itself, one whose process is stopped is named first."""
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        os.kill(sleeper.pid, signal.SIGSTOP)
        while not is_stopped(sleeper.pid):
            os.sched_yield()
        waiting = replace(stage("model", "starved", "packs"), pid=sleeper.pid)
        now = look_closer(status(stage("source", "busy"), waiting), KNOWN)
    finally:
        sleeper.kill()
        sleeper.communicate()
    assert [cause.stage for cause in root_causes(now, KNOWN)] == ["model"]
    told = describe_stall(now, KNOWN)
    assert told.startswith("everybody waits for model[0]:\n  model[0] is stopped for 21 s")


def test_who_has_nothing_to_do_is_idle() -> None:
    """A stage whose producers have ended waits for nobody, and is no cause."""
    now = look_closer(
        status(
            stage("source", "done"),
            stage("encoder", "blocked", "the other stages' gradients"),
            stage("packer", "done"),
            stage("model", "done"),
            stage("accuracy", "starved", "rows from model"),
        ),
        KNOWN,
    )
    assert [cause.stage for cause in root_causes(now, KNOWN)] == ["encoder"]
    assert "accuracy[0] is idle for 21 s: all that it reads has ended" in describe_stall(now, KNOWN)


def test_who_holds_credits_and_room_is_told() -> None:
    """With how much of how much, in rows and bytes."""
    channel = ChannelStatus("source", "encoder", "samples", 64, 64, 2**20, 2**22)
    now = Status(
        31.0,
        (
            stage("source", "blocked", "credits of 'encoder'"),
            stage("encoder", "blocked", "room in the pool"),
            stage("model", "busy"),
        ),
        PoolStatus(15 * 2**20, 2**24, 2**24),
        (channel,),
    )
    told = describe_stall(now, KNOWN)
    assert "that is for encoder; encoder holds 64 of 64 rows, 1 MiB of 4 MiB" in told
    assert "waiting for room in the pool, that is for " in told
    assert "15 MiB of the pool's 16 MiB are in use" in told


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_planted_stall_is_explained(seed: int) -> None:
    """Wherever a worker gets stuck, the run is given up in time, and that worker is blamed."""
    snag, _, wrong = judge(seed)
    assert wrong == [], snag
