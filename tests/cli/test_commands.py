"""The commands check, draw, run and version: what they print, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowengine import launch
from flowengine.cli.exits import MEANINGS
from flowengine.cli.main import main
from flowengine.errors import OutOfBudgetError, RunError, StageError, StallError, WorkerLostError
from flowengine.graph import Graph
from flowengine.runtime.events import (
    Observer,
    PoolStatus,
    RunDone,
    RunFailed,
    RunStarted,
    Status,
    StepDone,
)

RETURN = 'graph.feedback(GradientReturn(), model["gradients"], to=features)'
FILE = """\
from flowengine import Graph, Step
from flowengine.api import AdamW, GradientReturn
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker
from flowengine.operators.sources import DigitCards
from flowengine.operators.vision import VisionEncoder

def build(*, steps: int = 10, capacity: str = "64 MiB") -> Graph:
    adam = AdamW(lr=1e-3)
    graph = Graph("docqa", step=Step(samples=8), steps=steps)
    pages = graph.add(DigitCards())
    features = graph.add(VisionEncoder(), pages, optimizer=adam)
    pooled = graph.pool(pages, features, capacity=capacity)
    packs = graph.add(CostPacker(max_tokens=512), pooled)
    model = graph.add(LanguageModel(vocabulary=DigitCards.vocabulary), packs, optimizer=adam)
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    return graph
"""


@pytest.fixture
def graph_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph file without mistakes, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(launch, "write_page", lambda run_dir: run_dir)
    path = tmp_path / "graph.py"
    path.write_text(FILE)
    return path


def flowengine(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def train(graph: Graph, *, runtime: str, run_dir: Path, observe: Observer, **_: object) -> None:
    """Stands in for the runtime: a run of two steps that computes nothing."""
    observe(RunStarted(graph.name, runtime, run_dir, graph.steps, ("a",)))
    for step in range(2):
        observe(StepDone(step, 1.0 + step, 0.5, 8, 80, 8, 1, 0.9, None, {}, {}))
    observe(RunDone(3.0, 0.1, Status(3.0, (), PoolStatus(0, 0, 1)), {}))


def failing(error: BaseException) -> Callable[..., None]:
    """Stands in for a runtime whose run ends with this error."""

    def execute(
        graph: Graph, *, runtime: str, run_dir: Path, observe: Observer, **_: object
    ) -> None:
        observe(RunStarted(graph.name, runtime, run_dir, graph.steps, ("a",)))
        observe(RunFailed(1.0, f"{type(error).__name__}: {error}"))
        raise error

    return execute


def test_check(graph_file: Path) -> None:
    """check says that a graph is well formed, and what its stages take and give."""
    result = flowengine("check", graph_file.name, "capacity=32 MiB")
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "ok: docqa: 8 samples per step, 10 steps, staleness 0, pool 32 MiB"
    assert "vision_encoder encoder Sample -> Features" in lines


@pytest.mark.parametrize(
    ("before", "after", "line", "message"),
    [
        ("samples=8", "samples=0", 10, "Step(samples=) is 0; expected a whole number"),
        ("packs, optimizer=adam", "pooled, optimizer=adam", 15, "port 'pack' takes Pack, but"),
        ("512), pooled", "512), pages", 14, "takes Joined, but"),
        ("pages, optimizer=adam", "optimizer=adam", 12, "1 input port(s) ['sample'] but 0 stream"),
        ('["gradients"]', '["gradient"]', 16, "has no output port 'gradient'; it has 'gradients'"),
        ("pages, optimizer=adam", "pages, name='pages2'", 12, "trains but has no optimizer; pass"),
        (RETURN, "pass", 12, "trains, but no gradient returns to it; add graph.feed"),
        ("steps=steps", "steps=None", 11, "has no end, and the graph no steps="),
        ('"64 MiB"', '"100 KiB"', 13, "one pack of 512 tokens has up to 256 KiB of features of"),
        ('"64 MiB"', '"a lot"', 13, "size 'a lot' is not a size; write a number of bytes"),
        ("to=features", "to=pages", 16, "to='digit_cards' is no encoder; gradients return to"),
        ("return graph", "graph.add(DigitCards(), name='b')\n    return graph", 17, "2 sources"),
    ],
)
def test_check_refuses(graph_file: Path, before: str, after: str, line: int, message: str) -> None:
    """Every kind of mistake exits with 3, and is told with its line and without a traceback."""
    assert FILE.count(before) == 1
    graph_file.write_text(FILE.replace(before, after))
    result = flowengine("check", graph_file.name)
    assert result.exit_code == 3
    assert all(text.startswith("error: ") for text in result.stderr.splitlines())
    assert f"graph.py:{line}" in result.stderr
    assert message in result.stderr


def test_several_problems(graph_file: Path) -> None:
    """Several problems are told one per line."""
    graph_file.write_text(FILE.replace(", optimizer=adam", ""))
    result = flowengine("check", graph_file.name)
    assert [line[:13] for line in result.stderr.splitlines()] == ["error: stage "] * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def build(:\n    pass\n", ["error: graph.py:1: invalid syntax", "def build(:"]),
        ("import nosuch\n", ["error: graph.py:1: ModuleNotFoundError: No module named 'nosuch'"]),
        (
            "def half(x):\n    return 1 / x\n\ndef build():\n    return half(0)\n",
            ["error: graph.py:2: ZeroDivisionError: division by zero", "in build", "in half"],
        ),
        (
            "import json\n\ndef build():\n    json.loads('{')\n",
            ["error: graph.py:4: json.decoder."],
        ),
    ],
)
def test_errors_of_the_file_itself(graph_file: Path, text: str, expected: list[str]) -> None:
    """An exception of the graph file exits with 3, and shows its frames and no others."""
    graph_file.write_text(text)
    result = flowengine("check", graph_file.name)
    assert result.exit_code == 3
    assert all(part in result.stderr for part in expected)
    assert "flowengine/" not in result.stderr
    assert "importlib" not in result.stderr
    assert "json/" not in result.stderr


def test_check_json(graph_file: Path) -> None:
    """With --json a graph is an object, with its stages."""
    described = json.loads(flowengine("check", graph_file.name, "--json").stdout)
    assert (described["graph"], described["pool_capacity_bytes"]) == ("docqa", 64 * 2**20)
    assert described["stages"]["vision_encoder"]["kind"] == "encoder"


def test_draw_mermaid(graph_file: Path) -> None:
    """Without -o the graph is Mermaid text on stdout, with it a file by its suffix."""
    printed = flowengine("draw", graph_file.name)
    assert printed.stdout.startswith("flowchart LR\n")
    assert flowengine("draw", graph_file.name, "-o", "graph.mmd").exit_code == 0
    assert Path("graph.mmd").read_text() == printed.stdout


def test_run(graph_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """run prints progress and a summary, and leaves a run directory of its own each time."""
    monkeypatch.setattr(launch, "execute", train)
    results = [flowengine("run", graph_file.name, "steps=2") for _ in range(3)]
    assert [result.exit_code for result in results] == [0, 0, 0]
    assert "step 2/2, loss 0.5000" in results[0].stdout
    assert "run directory: runs/docqa-" in results[0].stdout
    made = list(Path("runs").iterdir())
    assert len(made) == 3
    assert all((path / "report.json").is_file() for path in made)


def test_run_json(graph_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --json stdout is JSON alone, one event per line, the report last."""
    monkeypatch.setattr(launch, "execute", train)
    result = flowengine("run", graph_file.name, "--json", "--run-dir", "here")
    events: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["event"] for event in events] == ["run_started", "step", "step", "done"]
    assert events[-1]["report"] == json.loads(Path("here/report.json").read_text())


def test_run_quiet(graph_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --quiet a run that ends well prints nothing."""
    monkeypatch.setattr(launch, "execute", train)
    result = flowengine("run", graph_file.name, "--quiet", "--run-dir", "here")
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (StageError("stage 'a': no"), 1, "error: stage 'a': no"),
        (RunError("no more"), 1, "error: no more"),
        (StallError("'a' waits for 'b'"), 4, "error: 'a' waits for 'b'"),
        (WorkerLostError("stage 'a' was killed"), 5, "error: stage 'a' was killed"),
        (OutOfBudgetError("the disk is full"), 7, "error: the disk is full"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"], ["--quiet"]])
def test_run_that_fails(
    graph_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    message: str,
    options: list[str],
) -> None:
    """Every way to fail has its exit code and a line on stderr, and leaves a report."""
    monkeypatch.setattr(launch, "execute", failing(error))
    result = flowengine("run", graph_file.name, "--run-dir", "here", *options)
    assert result.exit_code == code
    assert result.stderr.splitlines()[-1] == message
    report = json.loads(Path("here/report.json").read_text())
    assert report["status"] == "failed"
    assert report["error"].startswith(type(error).__name__)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.py"], "nowhere.py: no such file"),
        (["run", "graph.py", "steps"], "'steps': write key=value"),
        (["run", "graph.py", "--json", "--quiet"], "--json and --quiet exclude each other"),
        (["run", "graph.py", "--runtime", "cloud"], "'cloud' is not one of 'local', 'inline'"),
        (["run", "graph.py", "--run-dir", "full"], "full: exists and is not empty; name a new run"),
        (["draw", "graph.py", "-o", "graph.gif"], "expected *.svg, *.png or *.mmd"),
        (["draw"], "name either GRAPH.py or --run RUN"),
        (["top", "nowhere"], "'nowhere' does not exist"),
        (["run", "graph.py", "--prometheus", "here"], "'here': expected PORT or HOST:PORT"),
        (["dance"], "No such command 'dance'"),
    ],
)
def test_usage(graph_file: Path, arguments: list[str], message: str) -> None:
    """A wrong command line exits with 2 and says what is wrong; no run directory is touched."""
    (graph_file.parent / "full").mkdir()
    (graph_file.parent / "full" / "report.json").write_text("old")
    result = flowengine(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert (graph_file.parent / "full" / "report.json").read_text() == "old"
    assert not Path("runs").exists()


def test_refused_before_the_run(graph_file: Path) -> None:
    """run refuses what check refuses, and makes no run directory."""
    result = flowengine("run", graph_file.name, "steps=0")
    assert result.exit_code == 3
    assert "steps is 0; expected a whole number of at least 1" in result.stderr
    assert not Path("runs").exists()


def test_help_lists_exit_codes() -> None:
    """The exit codes are in --help."""
    text = flowengine("--help").stdout
    assert all(f"{code:<4} {meaning}" in text for code, meaning in MEANINGS.items())


def test_version() -> None:
    """version prints what a bug report needs, also as JSON."""
    versions = json.loads(flowengine("version", "--json").stdout)
    assert list(versions) == ["flowengine", "python", "torch", "pyarrow", "numba"]
    text = flowengine("version").stdout
    assert all(f"{name:<10} {found}" in text for name, found in versions.items())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["--help", "version"])
def test_help_is_quick(command: str) -> None:
    """--help and version do not import torch, which takes more than a second."""
    code = (
        "import sys; from flowengine.cli.main import main; "
        f"main([{command!r}], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.slow
def test_as_a_module(graph_file: Path) -> None:
    """`python -m flowengine` is the command, with its exit codes."""
    command = [sys.executable, "-m", "flowengine", "check", graph_file.name, "steps=0"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 3
    assert result.stderr.startswith("error: graph 'docqa' (graph.py:10): steps is 0")


@pytest.mark.slow
def test_reader_of_stdout_goes_away(graph_file: Path) -> None:
    """A run whose stdout is closed goes on to its end, and succeeds."""
    code = (
        "import sys, test_commands; from flowengine import launch; from flowengine.cli.main import "
        "main; launch.execute = test_commands.train; main(['run', 'graph.py', '--run-dir', 'here'])"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parent), "PATH": ""},
    )
    assert run.stdout is not None
    run.stdout.close()
    assert run.stderr is not None
    assert (run.stderr.read(), run.wait()) == ("", 0)
    run.stderr.close()
    assert json.loads((graph_file.parent / "here" / "report.json").read_text())["steps"] == 2
