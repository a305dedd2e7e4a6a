"""Graphs of plain functions and operators, without training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes_plain import (
    LARGE,
    Add,
    Gather,
    Number,
    Numbers,
    double,
    halve,
    only_even,
    plain_graph,
    same,
    square,
    total,
)
from running import Ran, run_graph

from flowengine import Credits, Graph, Step
from flowengine.api import Context, Operator
from flowengine.errors import StageError, StallError
from flowengine.graph.graph import Stream
from flowengine.graph.share import DEFAULT_CAPACITY
from flowengine.runtime import Runtime

QUARTER = DEFAULT_CAPACITY // 4 // 4
"""Floats that take a quarter of the pool of a graph that says nothing about it."""

RUNTIMES = ["inline", pytest.param("local", marks=pytest.mark.slow)]
both = pytest.mark.parametrize("runtime", RUNTIMES)


def seen(ran: Ran, sink: str = "sink") -> list[list[list[Any]]]:
    """What a sink gathered, round by round."""
    return [report.value for report in ran.reports if report.stage == sink]


def values(ran: Ran, sink: str = "sink") -> list[int]:
    """All the values that a sink gathered, in ascending order."""
    return sorted(value for round_ in seen(ran, sink) for value, _ in round_)


@both
def test_values_pass_through_functions_and_operators(runtime: Runtime, tmp_path: Path) -> None:
    """A chain of functions and operators maps every sample, in order, round by round."""
    ran = run_graph(plain_graph(double, Add(amount=1)), tmp_path, runtime=runtime)
    assert seen(ran) == [
        [[2 * i + 1, 3.0 * (2 * i + 1)] for i in range(4 * step, 4 * step + 4)] for step in range(3)
    ]
    assert not ran.steps


@both
def test_large_values_travel_in_the_pool(runtime: Runtime, tmp_path: Path) -> None:
    """Values beyond a message's size pass unchanged; the catalogue has each, by its maker."""
    ran = run_graph(plain_graph(double, size=LARGE), tmp_path, runtime=runtime)
    assert seen(ran)[2] == [[2 * i, 2.0 * i * LARGE] for i in range(8, 12)]
    for stage in ("source", "f0"):
        assert sorted(row["sample"] for row in ran.rows(stage)) == list(range(12))
    assert ran.done is not None
    assert ran.done.status.pool.used_bytes == 0


@both
def test_a_stream_may_have_many_readers(runtime: Runtime, tmp_path: Path) -> None:
    """Every reader of a stream gets every sample."""
    graph = plain_graph(same, size=LARGE)
    stream = graph.add(double, graph.add(square, Stream(graph, "f0")))
    graph.add(Gather(), stream, name="other")
    ran = run_graph(graph, tmp_path, runtime=runtime)
    assert values(ran) == list(range(12))
    assert values(ran, "other") == [2 * i * i for i in range(12)]
    assert len(ran.rows("f0")) == 12


@both
def test_streams_on_one_port_are_merged(runtime: Runtime, tmp_path: Path) -> None:
    """A list of streams on one port brings the rows of all of them, each once."""
    graph = Graph("merged", step=Step(samples=4), steps=2)
    numbers = graph.add(Numbers(), name="source")
    graph.add(Gather(), [graph.add(double, numbers), graph.add(square, numbers)], name="sink")
    ran = run_graph(graph, tmp_path, runtime=runtime)
    for step, round_ in enumerate(seen(ran)):
        samples = range(4 * step, 4 * step + 4)
        assert sorted(v for v, _ in round_) == sorted(f(i) for i in samples for f in (_2, _sq))


def _2(i: int) -> int:
    return 2 * i


def _sq(i: int) -> int:
    return i * i


@both
@pytest.mark.parametrize("credits", [1, 2, 1024])
def test_ports_are_joined_by_sample(credits: int, runtime: Runtime, tmp_path: Path) -> None:
    """A function of two parameters gets both values of a sample, whatever order they arrive in."""
    bound = Credits(items=credits)
    graph = Graph("joined", step=Step(samples=5), steps=2)
    numbers = graph.add(Numbers(), name="source")
    doubled = graph.add(double, numbers, replicas=2, credits=bound)
    squared = graph.add(square, graph.add(same, numbers, credits=bound), credits=bound)
    graph.add(Gather(), graph.add(total, doubled, squared, credits=bound), name="sink")
    ran = run_graph(graph, tmp_path, runtime=runtime)
    assert values(ran) == [2 * i + i * i for i in range(10)]


@both
def test_ports_branch(runtime: Runtime, tmp_path: Path) -> None:
    """Each port of a result goes its own way, and None goes nowhere."""
    graph = Graph("branch", step=Step(samples=4), steps=2)
    halves = graph.add(halve, graph.add(Numbers(), name="source"))
    graph.add(Gather(), halves["even"], name="evens")
    graph.add(Gather(), halves["rest"], name="rests")
    ran = run_graph(graph, tmp_path, runtime=runtime)
    assert values(ran, "evens") == [0, 1, 2, 3]
    assert values(ran, "rests") == [0] * 4 + [1] * 4


def test_branches_may_meet_again(tmp_path: Path) -> None:
    """A sample that took one of two branches is joined with its other part."""
    graph = Graph("meet", step=Step(samples=4), steps=2)
    numbers = graph.add(Numbers(), name="source")
    odd = graph.add(only_odd, numbers)
    even = graph.add(only_even, numbers)
    graph.add(Gather(), graph.add(total, [odd, even], numbers), name="sink")
    assert values(run_graph(graph, tmp_path)) == [2 * i for i in range(8)]


def only_odd(number: Number) -> Number | None:
    return number if number.value % 2 else None


@both
def test_none_drops_a_sample(runtime: Runtime, tmp_path: Path) -> None:
    """A function that gives None for a sample ends its way there; the others go on."""
    ran = run_graph(plain_graph(only_even, double), tmp_path, runtime=runtime)
    assert values(ran) == [2 * i for i in range(0, 12, 2)]


@both
@pytest.mark.parametrize("replicas", [1, 2, 7])
def test_replicas_lose_nothing(replicas: int, runtime: Runtime, tmp_path: Path) -> None:
    """Replicas of a function share the samples: each passes once, in its own round."""
    if runtime == "local" and replicas == 7:
        pytest.skip("14 processes for what two replicas show")
    graph = plain_graph(double, square, replicas=replicas, credits=Credits(items=2), samples=5)
    ran = run_graph(graph, tmp_path, runtime=runtime)
    assert [sorted(v for v, _ in round_) for round_ in seen(ran)] == [
        [(2 * i) ** 2 for i in range(5 * step, 5 * step + 5)] for step in range(3)
    ]


def test_replicas_take_turns(tmp_path: Path) -> None:
    """Which replica gets a sample follows from its id alone."""
    ran = run_graph(plain_graph(same, replicas=3, size=LARGE), tmp_path)
    assert all(row["replica"] == row["sample"] % 3 for row in ran.rows("f0"))


def test_a_step_may_end_before_a_replica_gets_anything(tmp_path: Path) -> None:
    """Rounds close also where some replicas have no sample in them."""
    ran = run_graph(plain_graph(double, replicas=5, samples=2), tmp_path)
    assert seen(ran) == [[[2 * i, 6.0 * i] for i in (j, j + 1)] for j in (0, 2, 4)]


def test_a_join_misses_a_sample(tmp_path: Path) -> None:
    """A sample that reaches one port and not the other is an error that names both."""
    graph = Graph("missing", step=Step(samples=4), steps=1)
    numbers = graph.add(Numbers(), name="source")
    graph.add(Gather(), graph.add(total, numbers, graph.add(only_even, numbers)), name="sink")
    with pytest.raises(
        StageError, match=r"stage 'total' .*sample 1 reached port 'one' but not \['other'\]"
    ):
        run_graph(graph, tmp_path)


def test_a_sample_reaches_a_joined_port_twice(tmp_path: Path) -> None:
    """A sample that two streams bring to one joined port is an error, not a lost value."""
    graph = Graph("twice", step=Step(samples=4), steps=1)
    numbers = graph.add(Numbers(), name="source")
    ways = [graph.add(double, numbers), graph.add(square, numbers)]
    late = graph.add(same, graph.add(same, numbers), name="late")
    graph.add(Gather(), graph.add(total, ways, late), name="sink")
    with pytest.raises(StageError, match=r"stage 'total' .*sample 0 reached port 'one' twice"):
        run_graph(graph, tmp_path)


class Keep(Operator):
    """Keeps every value it has seen, and what makes a cycle of references."""

    cycle: bool = False

    def open(self, context: Context) -> None:
        self._report = context.report
        self._kept: list[Any] = []

    def process(self, number: Number) -> None:
        kept = [number]
        if self.cycle:
            kept.append(kept)  # type: ignore[arg-type]
            self._kept = kept
        else:
            self._kept += kept

    def close(self) -> None:
        self._kept.clear()

    def flush(self) -> None:
        if not self.cycle:
            self._report("seen", [[n.value, float(n.data.sum())] for n in self._kept])


@both
def test_a_sink_may_keep_what_it_got(runtime: Runtime, tmp_path: Path) -> None:
    """Values that an operator keeps to the end stay as they were and do not keep the run from
    ending; the catalogue has their rows."""
    graph = plain_graph(double, sink=Keep(), size=LARGE)
    ran = run_graph(graph, tmp_path, runtime=runtime)
    assert seen(ran)[-1] == [[2 * i, 2.0 * i * LARGE] for i in range(12)]
    assert sorted(row["sample"] for row in ran.rows("f0")) == list(range(12))


@pytest.mark.slow
@both
def test_garbage_may_hold_leases(runtime: Runtime, tmp_path: Path) -> None:
    """Values that only garbage refers to, in a cycle, give their room in the pool back."""
    graph = plain_graph(sink=Keep(cycle=True), source=Numbers(size=QUARTER), steps=3, samples=2)
    ran = run_graph(graph, tmp_path, runtime=runtime)
    assert len(ran.rows("source")) == 6


@pytest.mark.slow
def test_a_sink_that_keeps_too_much_is_named(tmp_path: Path) -> None:
    """Where kept values fill the pool the run ends with an error that says who waits for room."""
    graph = plain_graph(sink=Keep(), source=Numbers(size=QUARTER), steps=3, samples=2)
    with pytest.raises(
        StallError, match=r"source\[0\] is blocked for .* waiting for room in the pool"
    ):
        run_graph(graph, tmp_path)


@dataclass(frozen=True)
class Signed(Number):
    """A number with more to it than its readers ask for."""

    sign: int


def signed(number: Number) -> Signed:
    return Signed(number.value, number.data, -1)


def any_sign(value: object) -> Number:
    assert isinstance(value, Signed)
    return Number(value.sign * value.value, value.sign * value.data)


def number_or_pair(value: Number | tuple[int, int]) -> Number:
    assert isinstance(value, Number)
    return value


@both
def test_a_value_keeps_its_type(runtime: Runtime, tmp_path: Path) -> None:
    """A reader of a wider type (a base, a union, object) gets the value that was sent."""
    ran = run_graph(plain_graph(signed, any_sign), tmp_path / "kept", runtime=runtime)
    assert values(ran) == [-i for i in range(11, -1, -1)]
    ran = run_graph(plain_graph(signed, number_or_pair), tmp_path / "union", runtime=runtime)
    assert values(ran) == list(range(12))
