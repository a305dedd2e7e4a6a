"""What goes wrong is told: which stage, which line of the graph, which samples, which line of the
operator; and the run is over."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakes_faulty
import pytest
from fakes import MixedSamples
from fakes_faulty import (
    FaultyEncoder,
    FaultyModel,
    FaultyPacker,
    FaultyReturn,
    FaultySink,
    FaultySource,
    Locked,
    NoTargets,
    Unopened,
    drop,
    faulty_graph,
    parse_nonsense,
)
from fakes_plain import Number, plain_graph
from running import run_graph

from flowengine import Graph
from flowengine.api import GradientReturn, Gradients
from flowengine.errors import GraphError, StageError
from flowengine.operators.packing import CostPacker
from flowengine.runtime import Runtime, execute
from flowengine.runtime.events import Event, RunDone, RunFailed

ENCODER: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "output": 12}
MODEL: dict[str, Any] = {"vocabulary": 23, "width": 12, "depth": 1, "heads": 2, "groups": 1}
RUNTIMES = ["inline", pytest.param("local", marks=pytest.mark.slow)]
both = pytest.mark.parametrize("runtime", RUNTIMES)

RAISING: list[tuple[str, str, Callable[[], Graph]]] = [
    ("source", "source: cannot read", lambda: faulty_graph(source=FaultySource())),
    (
        "source",
        "source: cannot measure",
        lambda: faulty_graph(source=FaultySource(fault="lengths")),
    ),
    ("source", "packer: cannot plan", lambda: faulty_graph(packer=FaultyPacker(max_tokens=32))),
    (
        "encoder",
        "encoder: cannot batch",
        lambda: faulty_graph(encoder=FaultyEncoder(**ENCODER, fault="batch")),
    ),
    (
        "encoder",
        "encoder: cannot look",
        lambda: faulty_graph(encoder=FaultyEncoder(**ENCODER)),
    ),
    (
        "encoder",
        "encoder: cannot learn",
        lambda: faulty_graph(encoder=FaultyEncoder(**ENCODER, fault="backward")),
    ),
    ("model", "model: cannot score", lambda: faulty_graph(model=FaultyModel(**MODEL))),
    (
        "model",
        "model: cannot answer",
        lambda: faulty_graph(model=FaultyModel(**MODEL, fault="answers")),
    ),
    ("model", "feedback: cannot return", lambda: faulty_graph(gradients=FaultyReturn())),
    ("accuracy", "sink: cannot take", lambda: faulty_graph(sink=FaultySink())),
    ("accuracy", "sink: cannot flush", lambda: faulty_graph(sink=FaultySink(fault="flush"))),
]


def fail(graph: Graph, tmp_path: Path, runtime: Runtime = "inline") -> str:
    """The first line of the error that the run ends with."""
    with pytest.raises(StageError) as caught:
        run_graph(graph, tmp_path, runtime=runtime)
    return str(caught.value).splitlines()[0]


OVER_PROCESSES = ["read", "look", "learn", "score", "take"]


@pytest.mark.parametrize(
    ("stage", "message", "build", "runtime"),
    [
        *(pytest.param(*each, "inline", id=each[1]) for each in RAISING),
        *(
            pytest.param(*each, "local", id=f"{each[1]}, local", marks=pytest.mark.slow)
            for each in RAISING
            if each[1].split()[-1] in OVER_PROCESSES
        ),
    ],
)
def test_an_operator_that_raises_is_named(
    stage: str, message: str, build: Callable[[], Graph], runtime: Runtime, tmp_path: Path
) -> None:
    """Wherever an operator raises, the error names the stage, where the graph made it, the samples
    in hand, and the line of the operator that raised."""
    error = fail(build(), tmp_path, runtime)
    wanted = re.compile(
        rf"stage '{stage}' \(fakes_faulty\.py:(\d+)\) failed(?: with samples -?\d+(?:, -?\d+)* in "
        rf"hand)? at fakes_faulty\.py:(\d+): ValueError: {message}"
    )
    found = wanted.fullmatch(error)
    assert found is not None, error
    assert ("in hand" in error) == ("flush" not in message)
    line = linecache.getline(fakes_faulty.__file__, int(found.group(2)))
    assert line.strip() == f'raise ValueError("{message}")'
    assert "graph.add(" in linecache.getline(fakes_faulty.__file__, int(found.group(1)))


@both
def test_the_innermost_line_of_the_operator_is_named(runtime: Runtime, tmp_path: Path) -> None:
    """An error out of a library's depth is told with the operator's line that called it."""
    error = fail(faulty_graph(between=parse_nonsense), tmp_path, runtime)
    assert re.search(r"stage 'between' .* at fakes_faulty\.py:\d+: ValueError: invalid lit", error)


def read_json(number: Number) -> Number:
    """Fails in the standard library."""
    import json

    return Number(json.loads("{"), number.data)


def test_a_library_is_not_the_operators_line(tmp_path: Path) -> None:
    """The line named is the operator's own, not one in the standard library."""
    assert re.search(
        r"stage 'f0' .*with samples 0 in hand at test_errors\.py:\d+: JSONDecodeError",
        fail(plain_graph(read_json), tmp_path),
    )


@pytest.mark.parametrize(
    ("stage", "message", "build"),
    [
        (
            "source",
            r"sample 4 has \(tokens, labels, targets\) = \(\d+, \d+, \d+\), but its lengths said "
            r"\(\d+, \d+, \d+\); lengths\(i\) and read\(i\) must agree",
            lambda: faulty_graph(source=FaultySource(fault="longer")),
        ),
        (
            "source",
            r"sample 4 has the target 3 at its first token, which nothing can predict; expected "
            "the label -100 there",
            lambda: faulty_graph(source=FaultySource(fault="first label")),
        ),
        (
            "source",
            "step 0 has 4 samples and not one target token, so it has no loss; expected labels "
            "other than -100 in at least one of them",
            lambda: faulty_graph(source=NoTargets()),
        ),
        (
            "source",
            r"stage 'packer' \(fakes_faulty.py:\d+\): sample 0 has \d+ tokens, a pack holds 2; "
            "raise max_tokens=",
            lambda: faulty_graph(packer=CostPacker(max_tokens=2)),
        ),
        (
            "source",
            r"stage 'packer' .*plan\(\) must give every index below 4 exactly once; got \d indices "
            r"in \d packs",
            lambda: faulty_graph(packer=FaultyPacker(max_tokens=32, fault="lost")),
        ),
        (
            "source",
            r"stage 'packer' .*plan\(\) must give every index below 4 exactly once",
            lambda: faulty_graph(packer=FaultyPacker(max_tokens=32, fault="twice")),
        ),
        (
            "encoder",
            r"forward gave \d+ feature rows for samples \[.*4.*\], whose lengths announce \[.*\]; "
            r"expected Lengths.media\['image'\] rows for each",
            lambda: faulty_graph(source=FaultySource(seed=0, fault="smaller picture")),
        ),
        (
            "encoder",
            r"forward gave \d+ feature rows for samples",
            lambda: faulty_graph(encoder=FaultyEncoder(**ENCODER, fault="rows")),
        ),
        (
            "encoder",
            r"forward gave features of shape \(11,\) per row and torch.float32; expected "
            r"feature_shape\(\) = \(12,\) and its stage's torch.float32",
            lambda: faulty_graph(encoder=FaultyEncoder(**ENCODER, fault="shape")),
        ),
        (
            "model",
            r"loss has shape \(2,\), expected a scalar sum",
            lambda: faulty_graph(model=FaultyModel(**MODEL, fault="shape")),
        ),
        (
            "model",
            r"step 0 has the loss nan on the samples \[[\d, ]+\]; the weights are those of the "
            "step before",
            lambda: faulty_graph(model=FaultyModel(**MODEL, fault="nan")),
        ),
        (
            "model",
            r"answers\(\) gave \d answers for \d samples",
            lambda: faulty_graph(model=FaultyModel(**MODEL, fault="too few")),
        ),
        (
            "model",
            r"FaultyReturn gave image gradients of shape \(1, 12\) and torch.float32; expected "
            r"those of the features, \(\d+, 12\) and torch.float32",
            lambda: faulty_graph(gradients=FaultyReturn(fault="shape")),
        ),
        (
            "model",
            r"FaultyReturn gave image gradients of shape \(\d+, 12\) and torch.float64",
            lambda: faulty_graph(gradients=FaultyReturn(fault="dtype")),
        ),
        (
            r"encoder",
            "step 0 has a gradient that is not finite; the weights are those of the step before. "
            "Look at its samples and learning rate",
            lambda: faulty_graph(gradients=FaultyReturn(fault="nan")),
        ),
        (
            r"encoder\[0\]",
            "step 0 has a gradient that is not finite; the weights are those of the step before",
            lambda: faulty_graph(gradients=FaultyReturn(fault="nan"), replicas=2),
        ),
        (
            r"encoder",
            "must give out every sample it takes in",
            lambda: faulty_graph(between=drop),
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_wrong_is_refused(
    stage: str, message: str, build: Callable[[], Graph], tmp_path: Path
) -> None:
    """What an operator must not give is refused where it is first seen, with the samples and what
    was expected instead."""
    error = fail(build(), tmp_path)
    assert re.match(rf"stage '{stage}' \(fakes_faulty\.py:\d+\) failed with samples ", error)
    assert re.search(message, error), error


@both
def test_an_operator_that_does_not_open_is_named(runtime: Runtime, tmp_path: Path) -> None:
    """An error in open is told as it was, though other operators were never opened, and their
    close fails."""
    graph = faulty_graph(source=FaultySource(fault="open"), sink=Unopened())
    assert re.search(
        r"^stage 'source' \(.*\) failed to open at fakes_faulty\.py:\d+: OSError: source: no such",
        fail(graph, tmp_path, runtime),
    )


@both
def test_an_operator_that_does_not_close_is_named(runtime: Runtime, tmp_path: Path) -> None:
    """An error in close is an error of the run, for what was to be written is not."""
    graph = faulty_graph(sink=FaultySink(fault="close"))
    assert re.search(
        r"^stage 'accuracy' \(.*\) failed to close .*ValueError: sink: cannot close",
        fail(graph, tmp_path, runtime),
    )


def test_what_went_wrong_first_is_told(tmp_path: Path) -> None:
    """An error in close does not hide the error that ended the run."""
    graph = faulty_graph(source=FaultySource(), sink=FaultySink(fault="close"))
    assert "source: cannot read" in fail(graph, tmp_path)


@both
def test_observers_hear_of_the_failure_last(runtime: Runtime, tmp_path: Path) -> None:
    """A run that fails ends with RunFailed, which carries the error's text; RunDone never comes."""
    events: list[Event] = []
    graph = faulty_graph(sink=FaultySink())
    with pytest.raises(StageError):
        execute(graph, runtime=runtime, run_dir=tmp_path, observe=events.append)
    assert isinstance(events[-1], RunFailed)
    assert "sink: cannot take" in events[-1].error
    assert not any(isinstance(event, RunDone) for event in events)


@pytest.mark.slow
def test_the_operators_traceback_crosses_the_process(tmp_path: Path) -> None:
    """From a worker the whole traceback of the operator's code comes along."""
    with pytest.raises(StageError, match=r"Traceback \(most recent call last\)") as caught:
        run_graph(faulty_graph(source=FaultySource()), tmp_path, runtime="local")
    assert 'raise ValueError("source: cannot read")' in str(caught.value)


class LocalReturn:
    """Makes operators that have no place in any module."""

    @staticmethod
    def make() -> GradientReturn:
        class Nowhere(GradientReturn):
            def process(self, gradients: Gradients) -> Gradients:
                return gradients

        return Nowhere()

    @staticmethod
    def make_source() -> MixedSamples:
        class NowhereElse(MixedSamples):
            pass

        return NowhereElse()


def lambda_graph() -> Graph:
    function = lambda number: number  # noqa: E731
    function.__annotations__ = {"number": Number, "return": Number}
    return plain_graph(function)


@pytest.mark.parametrize(
    ("where", "build"),
    [
        (r"stage 'source' \(fakes_faulty\.py:\d+\)", lambda: faulty_graph(source=Locked())),
        (r"stage 'f0' \(fakes_plain\.py:\d+\)", lambda_graph),
        (r"feedback \(fakes_faulty\.py:\d+\)", lambda: faulty_graph(gradients=LocalReturn.make())),
        (
            r"evaluate \(fakes_faulty\.py:\d+\)",
            lambda: faulty_graph(held_out=LocalReturn.make_source()),
        ),
    ],
    ids=["operator", "lambda", "feedback", "evaluation"],
)
def test_what_cannot_travel_is_refused(
    where: str, build: Callable[[], Graph], tmp_path: Path
) -> None:
    """On the local runtime an operator that cannot be pickled is refused with its place in the
    graph and what to do, before any process starts."""
    with pytest.raises(
        GraphError,
        match=rf"{where}: cannot be sent to its worker: .*; define functions and operators at the "
        "top level of a module, or use the inline runtime",
    ):
        run_graph(build(), tmp_path, runtime="local")


def test_what_cannot_travel_runs_inline(tmp_path: Path) -> None:
    """The inline runtime takes lambdas and locks."""
    run_graph(lambda_graph(), tmp_path / "lambda")
    run_graph(faulty_graph(source=Locked()), tmp_path / "lock")


def test_a_failed_step_leaves_no_weights(tmp_path: Path) -> None:
    """A run that fails writes no weights."""
    fail(faulty_graph(model=FaultyModel(**MODEL, fault="nan")), tmp_path)
    assert not (tmp_path / "weights").exists()
