"""A sample that fails is named with the command that runs it again, alone, in a debugger."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fakes import small_graph
from running import run_graph

from flowengine import Graph, launch
from flowengine.cli.main import main
from flowengine.errors import GraphError, StageError
from flowengine.runtime.events import Event, StepDone

TESTS = Path(__file__).parents[1]
FILE = """\
from dataclasses import replace
from fakes import MixedSamples, small_graph
from flowengine.api import Sample

class Broken(MixedSamples):
    bad: int = 12

    def read(self, index: int) -> Sample:
        if index == self.bad:
            missing = f"no picture {index}"
            raise ValueError(missing)
        return super().read(index)

def build(*, steps: int = 4, bad: int = 12):
    graph = small_graph(steps=steps, evaluate=4)
    graph.stage("source").what = Broken(bad=bad)
    graph.checkpoint(every=1)
    return graph
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a graph file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.py").write_text(FILE)
    return tmp_path


def flowengine(*arguments: str) -> Any:
    return CliRunner().invoke(main, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_a_failing_sample_is_replayed_in_a_debugger(runtime: str, folder: Path) -> None:
    """The error ends with a command; run as it stands, it stops where the operator raised, with
    its variables."""
    failed = flowengine("run", "graph.py", "steps=3", "--runtime", runtime, "--run-dir", "here")
    assert failed.exit_code == 1
    told = failed.stderr.splitlines()
    assert told[-2] == "run these samples alone, in a debugger:"
    command = shlex.split(told[-1])
    wanted = "flowengine replay graph.py steps=3 --samples=12 --behind here --pdb"
    assert command == wanted.split()
    replayed = subprocess.run(
        [sys.executable, "-m", *command],
        input="p missing\nq\n",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
    )
    assert replayed.returncode == 1
    assert "'no picture 12'" in replayed.stdout
    assert re.search(r"stage 'source' .* with samples 12 in hand at graph.py:\d+", replayed.stderr)
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == [
        "graph.py",
        "here",
    ]


@pytest.mark.parametrize(("ids", "step"), [("3", 0), ("17,20", 2), ("-2", 4)])
@pytest.mark.usefixtures("folder")
def test_what_does_not_fail_says_so(ids: str, step: int) -> None:
    """Training samples with their loss, held-out ones without."""
    flowengine("run", "graph.py", "bad=99", "--runtime", "inline", "--run-dir", "here")
    done = flowengine("replay", "graph.py", "bad=99", f"--samples={ids}", "--behind", "here")
    assert done.exit_code == 0, done.output
    named = ids.replace(",", ", ")
    assert f"samples {named} of step {step}: no error" in done.stdout
    assert ("loss" in done.stdout) == (ids != "-2")
    assert "checkpoints/step-00000004" in done.stdout


def test_replayed_samples_are_trained_alone(tmp_path: Path) -> None:
    """The loss is that of these samples and these weights, whatever else was in their step."""
    graph = small_graph(steps=3)
    graph.checkpoint(every=1, keep_last=9)
    whole = run_graph(graph, tmp_path / "run")
    found: list[Event] = []
    every = list(range(16, 24))
    behind = tmp_path / "run" / "checkpoints" / "step-00000002"
    launch.replay(graph, every, behind=behind, observe=found.append)
    (step,) = [event for event in found if isinstance(event, StepDone)]
    assert (step.step, step.samples, step.loss) == (2, 8, whole.losses[2])
    launch.replay(graph, every[:3], behind=behind, observe=found.append)
    assert [event.samples for event in found if isinstance(event, StepDone)] == [8, 3]


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        ([4, 9], "samples .4, 9. are of step 0, step 1; name some of one step"),
        ([4, -1], "are of step 0, the evaluation"),
        ([-5], "has no sample -5"),
    ],
)
def test_what_cannot_be_replayed_is_refused(samples: list[int], problem: str) -> None:
    """Samples of several steps, and such as there are none of."""
    with pytest.raises(GraphError, match=problem):
        launch.replay(small_graph(steps=4, evaluate=4), samples)


def test_graphs_without_evaluation_hold_none_out() -> None:
    """So they have no sample below 0."""
    with pytest.raises(GraphError, match="has no evaluation, so no sample -1"):
        launch.replay(small_graph(steps=4), [-1])


def unruly_graph(kind: str) -> Graph:
    from fakes_faulty import faulty_graph
    from fakes_unruly import Unruly

    return faulty_graph(source=Unruly(kind=kind))


@pytest.mark.parametrize("runtime", ["inline", pytest.param("local", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("unpicklable", "UnpicklableError: holds a lock"),
        ("speechless", r"SpeechlessError: \(its text cannot be had: RuntimeError\)"),
        ("surrogate", r"OSError: no file a\\udcff.png"),
        ("exit", "SystemExit: 3"),
        ("long", r"ValueError: x+\.\.\. \(1000000 characters\)"),
    ],
)
def test_any_exception_is_told(kind: str, told: str, runtime: Any, tmp_path: Path) -> None:
    """Also one that cannot be pickled, has no text or none that is UTF-8, or would end Python."""
    with pytest.raises(
        StageError, match=rf"stage 'source' .*with samples 4 in hand at fakes_unruly.py:\d+: {told}"
    ) as caught:
        run_graph(unruly_graph(kind), tmp_path, runtime=runtime)
    assert caught.value.samples == (4,)
