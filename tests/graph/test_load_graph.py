"""Graph files and the settings of their build()."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowengine.errors import GraphError
from flowengine.graph import load_graph

FILE = """
from pathlib import Path
from typing import Literal
from flowengine import Graph, Step

DType = Literal["float32", "float64"]

def build(*, samples: int = 8, clip: float | None = 1.0, dtype: DType = "float32",
          fast: bool = False, name: str = "g", old=3, where: Path | None = None) -> Graph:
    graph = Graph(name, step=Step(samples=samples), clip_norm=clip, dtype=dtype, steps=old)
    graph.fast, graph.where = fast, where
    return graph

def needs(*, width: int) -> Graph:
    return Graph("needs", step=Step(samples=width))

def wrong() -> Graph:
    Graph("wrong", step=Step(samples=1))

ready = Graph("ready", step=Step(samples=5))
number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "some_graph.py"
    path.write_text(FILE)
    before = list(sys.path)
    yield str(path)
    sys.path[:] = before


def test_build_is_called(file: str) -> None:
    """Without a name, build() makes the graph, which remembers its file."""
    graph = load_graph(file)
    assert (graph.name, graph.step.samples) == ("g", 8)
    assert graph.file == Path(file)


@pytest.mark.parametrize(
    ("setting", "attribute", "expected"),
    [
        ("clip=0.5", "clip_norm", 0.5),
        ("clip=none", "clip_norm", None),
        ("dtype=float64", "dtype", "float64"),
        ("fast=yes", "fast", True),
        ("fast=False", "fast", False),
        ("name=a=b", "name", "a=b"),
        ("old=4", "steps", 4),
        ("where=/tmp/x", "where", Path("/tmp/x")),
    ],
)
def test_settings(file: str, setting: str, attribute: str, expected: object) -> None:
    """key=value becomes an argument of the annotated type, or of its default's."""
    assert getattr(load_graph(file, [setting]), attribute) == expected


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("", ["sample=3"], r"build\(\) has no parameter 'sample'; did you mean samples\?"),
        ("", ["zzz=3"], r"build\(\) has no parameter 'zzz'; it takes samples, clip, dtype"),
        ("", ["samples"], "'samples' is no setting; write key=value"),
        ("", ["samples=many"], "samples='many': expected int"),
        ("", ["fast=perhaps"], "fast='perhaps': expected bool"),
        ("", ["dtype=half"], r"dtype='half': expected one of \['float32', 'float64'\]"),
        (":needs", [], r"needs\(\) needs a value; add width=..."),
        (":nothing", [], r"defines no 'nothing'; it has \['build', 'needs', 'wrong'\]"),
        (":wrong", [], r"wrong\(\) gave NoneType, expected Graph; end it with `return graph`"),
        (":number", [], "'number' is no function that makes a Graph, but 3"),
        (":ready", ["a=1"], r"'ready' is a graph; it takes no \['a=1'\]"),
    ],
)
def test_refused(file: str, name: str, settings: list[str], message: str) -> None:
    """A wrong name or setting is refused with what there is, or what was meant."""
    with pytest.raises(GraphError, match=message):
        load_graph(file + name, settings)


def test_graph_by_name(file: str) -> None:
    """file:name takes another function, or a graph."""
    assert load_graph(file + ":needs", ["width=7"]).step.samples == 7
    assert load_graph(file + ":ready").step.samples == 5


@pytest.mark.parametrize("target", ["nowhere.py", "no.such.module", "nosuchmodule"])
def test_no_such_file(target: str) -> None:
    """A file or module that is not there is refused by its name."""
    with pytest.raises(GraphError, match=f"{target}: no such file"):
        load_graph(target)


def test_module(file: str) -> None:
    """A graph file can be named as a module, if Python finds it."""
    sys.path.insert(0, str(Path(file).parent))
    try:
        assert load_graph("some_graph:ready").name == "ready"
    finally:
        del sys.modules["some_graph"]
