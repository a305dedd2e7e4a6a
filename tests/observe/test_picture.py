"""Pictures of graphs, and where the stages stand in them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from fakes_described import Pages, clean

from flowengine.api import Sample
from flowengine.errors import FlowError
from flowengine.graph import Graph, Step
from flowengine.observe import draw_picture
from flowengine.observe.layout import Layout, lay_out
from flowengine.observe.picture import Heat
from flowengine.observe.sketch import Sketch, sketch_graph, stream_labels


def merge(first: Sample, second: Sample) -> None:
    raise NotImplementedError


@pytest.fixture
def graph() -> Graph:
    graph = Graph("toy", step=Step(samples=1))
    pages = graph.add(Pages())
    graph.add(merge, graph.add(clean, pages), pages)
    return graph


def row(layout: Layout, name: str) -> float:
    return layout.places[name].row


def test_layers_are_longest_paths() -> None:
    """A stage stands one layer right of the rightmost stage it reads."""
    layout = lay_out("abcd", [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("a", "d")])
    assert [layout.places[name].layer for name in "abcd"] == [0, 1, 2, 3]
    assert layout.num_layers == 4


def test_chain_is_level() -> None:
    """A chain is drawn as a straight line."""
    layout = lay_out("abcd", [("a", "b"), ("b", "c"), ("c", "d")])
    assert len({row(layout, name) for name in "abcd"}) == 1


def test_long_streams_go_around() -> None:
    """A stream past a layer has a place of its own there, apart from the stages."""
    layout = lay_out("abc", [("a", "b"), ("b", "c"), ("a", "c")])
    (passing,) = layout.routes["a", "c"]
    assert passing.layer == 1
    assert abs(passing.row - row(layout, "b")) >= 1


@pytest.mark.parametrize("count", [1, 2, 7])
def test_siblings_are_apart(count: int) -> None:
    """Stages of one layer stand at least one row apart, around the stage they read."""
    names = [f"s{index}" for index in range(count)]
    layout = lay_out(["a", *names], [("a", name) for name in names])
    rows = [row(layout, name) for name in names]
    assert all(below - above >= 1 for above, below in pairwise(rows))
    assert sum(rows) / count == pytest.approx(row(layout, "a"))


def test_no_crossing_that_can_be_avoided() -> None:
    """Stages are ordered like the stages they read."""
    layout = lay_out("axypq", [("a", "x"), ("a", "y"), ("y", "p"), ("x", "q")])
    assert row(layout, "x") < row(layout, "y")
    assert row(layout, "q") < row(layout, "p")


def test_cycle_is_laid_out() -> None:
    """A graph that check refuses for its cycle can still be drawn."""
    layout = lay_out("abc", [("a", "b"), ("b", "c"), ("c", "b")])
    assert [layout.places[name].layer for name in "abc"] == [0, 1, 2]


def test_labels(graph: Graph) -> None:
    """Streams are labelled with their types."""
    assert stream_labels(graph) == {
        ("pages", "clean"): "Sample",
        ("clean", "merge"): "Sample",
        ("pages", "merge"): "Sample",
    }


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_files(graph: Graph, tmp_path: Path, suffix: str, start: bytes) -> None:
    """The suffix chooses the format."""
    path = tmp_path / f"toy{suffix}"
    draw_picture(sketch_graph(graph), path)
    assert path.read_bytes().startswith(start)


def test_other_suffix(graph: Graph, tmp_path: Path) -> None:
    """Another suffix is refused with those there are."""
    with pytest.raises(FlowError, match=r"toy.gif: a picture is .svg or .png, or .mmd for Mermaid"):
        draw_picture(sketch_graph(graph), tmp_path / "toy.gif")


def test_sketch_survives_json(graph: Graph) -> None:
    """A sketch read back from JSON is the same sketch."""
    sketch = sketch_graph(graph)
    assert Sketch.from_json(json.loads(json.dumps(sketch.to_json()))) == sketch
    assert [stage.kind for stage in sketch.stages] == ["source", "function", "sink"]
    assert sketch.streams[0].bound == 1024


def test_heat(graph: Graph, tmp_path: Path) -> None:
    """A picture of a run says how busy every stage was, and marks the bottleneck once."""
    path = tmp_path / "toy.svg"
    heated = Heat({"pages": 0.25, "clean": 0.9, "merge": 0.5}, "clean")
    draw_picture(sketch_graph(graph), path, heated=heated)
    text = path.read_text()
    assert [f">{share} busy<" in text for share in ("25%", "90%", "50%")] == [True] * 3
    assert text.count(">bottleneck<") == 1
