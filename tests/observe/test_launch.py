"""`run`: the run directory, the report, and who is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes_described import Pages

from flowengine import launch
from flowengine.api import Sample
from flowengine.errors import GraphError, StageError
from flowengine.graph import Graph, Step
from flowengine.runtime.events import (
    Event,
    Observer,
    PoolStatus,
    RunDone,
    RunFailed,
    RunStarted,
    Status,
)


def keep(sample: Sample) -> None:
    raise NotImplementedError


def train(graph: Graph, *, runtime: str, run_dir: Path, observe: Observer, **_: object) -> None:
    """Stands in for the runtime: a run that computes nothing."""
    observe(RunStarted(graph.name, runtime, run_dir, graph.steps, ("pages",)))
    observe(RunDone(3.0, 0.1, Status(3.0, (), PoolStatus(0, 0, 1)), {}))


def fail(graph: Graph, *, runtime: str, run_dir: Path, observe: Observer, **_: object) -> None:
    """Stands in for the runtime: a run in which an operator fails."""
    observe(RunStarted(graph.name, runtime, run_dir, graph.steps, ("pages",)))
    observe(RunFailed(1.0, "StageError: no"))
    raise StageError("no")


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "execute", train)
    graph = Graph("toy", step=Step(samples=1), steps=1)
    graph.add(keep, graph.add(Pages()))
    return graph


def test_report_is_given_back(graph: Graph, tmp_path: Path) -> None:
    """run gives back the report of the directory it was told to use."""
    report = launch.run(graph, runtime="inline", run_dir=tmp_path / "a" / "b")
    assert (report["status"], report["config"]["runtime"]) == ("done", "inline")
    assert (tmp_path / "a" / "b" / "report.json").is_file()


@pytest.mark.parametrize("times", [1, 2, 7])
def test_run_directories_are_new(graph: Graph, times: int) -> None:
    """Runs of the same second have directories of their own, named after graph and time."""
    for _ in range(times):
        launch.run(graph)
    names = [path.name for path in Path("runs").iterdir()]
    assert len(names) == times
    assert all(name.startswith("toy-20") for name in names)


def test_nothing_is_overwritten(graph: Graph, tmp_path: Path) -> None:
    """A run directory with files in it is refused; an empty one is taken."""
    launch.run(graph, run_dir=tmp_path / "here")
    with pytest.raises(FileExistsError, match="here: exists and is not empty; name a new run dir"):
        launch.run(graph, run_dir=tmp_path / "here")
    (tmp_path / "empty").mkdir()
    assert launch.run(graph, run_dir=tmp_path / "empty")["status"] == "done"


def test_observers_are_told(graph: Graph) -> None:
    """Every observer is told every event, in the order in which they happen."""
    told: list[Event] = []
    launch.run(graph, observers=[told.append, told.append])
    assert [type(event) for event in told] == [RunStarted] * 2 + [RunDone] * 2


def test_failure(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails raises its error, and leaves a report that says so."""
    monkeypatch.setattr(launch, "execute", fail)
    with pytest.raises(StageError, match="no"):
        launch.run(graph, run_dir=tmp_path / "here")
    assert '"error": "StageError: no"' in (tmp_path / "here" / "report.json").read_text()


def test_refused_graph_leaves_nothing(graph: Graph) -> None:
    """A graph that check refuses makes no run directory."""
    graph.steps = 0
    with pytest.raises(GraphError, match="steps is 0"):
        launch.run(graph)
    assert not Path("runs").exists()
