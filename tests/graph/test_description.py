"""Writing a graph: what `add`, `pool`, `feedback` and `evaluate` refuse at once, and where."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from fakes_described import Pages

from flowengine.api import GradientReturn, Operator, Ports, Sample
from flowengine.errors import GraphError
from flowengine.graph import Graph, Step, Stream
from flowengine.graph.description import Endpoint


@dataclass(frozen=True)
class Routed(Ports):
    short: Sample | None
    long: Sample | None
    size: int


def route(sample: Sample) -> Routed:
    raise NotImplementedError


def pair(first: Sample, second: Sample) -> Sample:
    raise NotImplementedError


def count(size: int) -> None:
    raise NotImplementedError


def untyped(sample):  # type: ignore[no-untyped-def]
    raise NotImplementedError


def half_typed(sample: Sample):  # type: ignore[no-untyped-def]
    raise NotImplementedError


def no_input() -> Sample:
    raise NotImplementedError


class NoProcess(Operator):
    size: int = 1


@pytest.fixture
def graph() -> Graph:
    return Graph("docqa", step=Step(samples=8))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        pytest.param(
            lambda g, pages: g.add(pair, pages),
            r"stage 'pair' .*: 2 input port\(s\) \['first', 'second'\] but 1 stream\(s\); give one",
            id="too few streams",
        ),
        pytest.param(
            lambda g, pages: g.add(count, g.add(route, pages)["middle"]),
            r"count .*: 'route' has no output port 'middle'; it has 'short' \(Sample\), 'long'",
            id="unknown port",
        ),
        pytest.param(
            lambda g, pages: g.add(pair, g.add(route, pages), pages),
            r"pair .*: 'route' has no single output; it has 'short' \(Sample\), 'long' \(Sample\)",
            id="ambiguous port",
        ),
        pytest.param(
            lambda g, pages: g.add(count, g.add(count, pages)),
            r"count .*: 'count' has no single output; it is a sink and gives nothing",
            id="stream of a sink",
        ),
        pytest.param(
            lambda g, pages: g.add(untyped, pages),
            r"stage 'untyped' .*: untyped has no type for parameter 'sample'; edges are checked",
            id="function without types",
        ),
        pytest.param(
            lambda g, pages: g.add(half_typed, pages),
            r"stage 'half_typed' .*: half_typed has no type for its result; edges are checked",
            id="function without a result type",
        ),
        pytest.param(
            lambda g, pages: g.add(no_input, pages),
            r"stage 'no_input' .*: no_input takes no input; give it one parameter per input",
            id="function without input",
        ),
        pytest.param(
            lambda g, pages: g.add(NoProcess(), pages),
            r"stage 'no_process' .*: NoProcess has no process\(self, value: In\) -> Out",
            id="operator without process",
        ),
        pytest.param(
            lambda g, _: g.add(Pages),
            r"Pages is a class; pass an operator, Pages\(...\)",
            id="class instead of an operator",
        ),
        pytest.param(
            lambda g, pages: g.add("pages", pages),
            r"'pages' is neither an operator nor a function",
            id="text instead of an operator",
        ),
        pytest.param(
            lambda g, _: g.add(count, ["pages"]),
            r"count .*: 'pages' is no stream; pass what graph.add returned",
            id="text instead of a stream",
        ),
        pytest.param(
            lambda g, _: g.add(count, Graph("other", step=Step(samples=1)).add(Pages())),
            r"count .*: Stream\('pages'\) belongs to another graph",
            id="stream of another graph",
        ),
        pytest.param(
            lambda g, pages: g.pool(pages, capacity="lots"),
            r"pool .*: capacity and disk: size 'lots' is not a size; write a number of bytes or",
            id="capacity that is no size",
        ),
        pytest.param(
            lambda g, pages: g.feedback(count, pages, to=pages),
            r"feedback .*: function is no GradientReturn; a feedback edge carries gradients",
            id="feedback through a function",
        ),
        pytest.param(
            lambda g, pages: g.feedback(GradientReturn(), pages, to="eye"),
            r"feedback .*: 'eye' is no stream; pass what graph.add returned",
            id="feedback to a name",
        ),
        pytest.param(
            lambda g, _: g.evaluate(Pages(), through=None, samples=1),
            r"evaluate .*: None is no stream; pass what graph.add returned",
            id="evaluation through nothing",
        ),
        pytest.param(
            lambda g, pages: g.connect(pages, to=g.add(pair, pages, pages)),
            r"stage 'pair' .*: has 2 input ports; connect takes one",
            id="connect to one of two ports",
        ),
    ],
)
def test_refused_at_once(
    graph: Graph, mistake: Callable[[Graph, Stream], Any], message: str
) -> None:
    """What cannot be part of any graph is refused where it is written, with that line."""
    pages = graph.add(Pages())
    with pytest.raises(GraphError) as refusal:
        mistake(graph, pages)
    assert re.search(message, str(refusal.value))
    assert "test_description.py:" in str(refusal.value)


def test_line_is_the_callers(graph: Graph) -> None:
    """A stage knows the line of the graph file that made it."""
    graph.add(Pages())
    assert re.fullmatch(r"stage 'pages' \(test_description.py:\d+\)", str(graph.stage("pages")))


def test_names_from_operators(graph: Graph) -> None:
    """A stage is named after its class in snake case or its function, unless name= says so."""
    pages = graph.add(Pages())
    assert pages.stage == "pages"
    assert graph.add(NoInputAtAll(), pages).stage == "no_input_at_all"
    assert graph.add(count, pages, name="other").stage == "other"


class NoInputAtAll(Operator):
    def process(self, sample: Sample) -> None:
        raise NotImplementedError


def test_port_by_type(graph: Graph) -> None:
    """Of several output ports, the one whose type fits is taken if there is only one."""
    graph.add(count, graph.add(route, graph.add(Pages())))
    assert graph.stage("count").producers == [Endpoint("route", "size")]


def test_list_of_streams_is_merged(graph: Graph) -> None:
    """A port that is given a list of streams reads all of them."""
    routed = graph.add(route, graph.add(Pages()))
    graph.add(pair, [routed["short"], routed["long"]], routed["short"])
    assert [str(e) for e in graph.stage("pair").inputs["first"]] == ["route.short", "route.long"]
    assert [str(e) for e in graph.stage("pair").inputs["second"]] == ["route.short"]
