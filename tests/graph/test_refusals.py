"""Every mistake in a graph is refused with where, what, what was expected, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fakes_described import ADAM, DocQA, Model, Numbers, Packs, Pages, Score, clean, docqa

from flowengine.api import GradientReturn
from flowengine.errors import GraphError
from flowengine.graph import Credits, Graph, Step, check, find_problems

Mistake = Callable[[DocQA], object]


def problems(described: DocQA, mistake: Mistake = repr) -> str:
    """What check says after the mistake; every problem must name a line."""
    mistake(described)
    with pytest.raises(GraphError) as refusal:
        check(described.graph)
    for problem in str(refusal.value).splitlines():
        assert re.search(r"\(\w+\.py:\d+\)", problem)
    return str(refusal.value)


def test_no_mistake() -> None:
    """A graph without mistakes is not refused."""
    assert find_problems(docqa().graph) == []


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        pytest.param(
            lambda d: d.graph.add(Score(), d.pages),
            r"stage 'score' \(.*\): port 'answer' takes Answer, but 'pages' gives Sample; "
            "put a stage between them that turns Sample into Answer",
            id="wrong type on a stream",
        ),
        pytest.param(
            lambda d: d.graph.add(Score(), []),
            r"stage 'score' \(.*\): input port 'answer' has no stream; give it one",
            id="port without a stream",
        ),
        pytest.param(
            lambda d: d.graph.add(clean, d.pages, name="eye"),
            r"stage 'eye' \(.*\): the name is taken by line fakes_described.py:\d+; pass name=",
            id="duplicate name",
        ),
        pytest.param(
            lambda d: d.graph.add(clean, d.pages, name="../clean"),
            r"stage '../clean' \(.*\): the name is its weight file's; use letters, digits",
            id="name that is no file name",
        ),
        pytest.param(
            lambda d: d.graph.add(Score(), d.model["answers"], name="pool"),
            r"stage 'pool' \(.*\): the name 'pool' is taken by the pool; pass another name=",
            id="name of the pool",
        ),
        pytest.param(
            lambda d: d.graph.add(clean, d.pages),
            r"stage 'clean' \(.*\): nobody reads 'clean'; add a stage that does, or remove it",
            id="unread stream",
        ),
        pytest.param(
            lambda d: d.graph.add(Numbers()),
            r"graph 'docqa' \(.*\) has 2 sources \(stage 'pages' \(.*\), stage 'numbers' \(.*\)\); "
            "expected one: mix several data sets inside one source",
            id="two sources",
        ),
        pytest.param(
            lambda d: d.graph.add(Model(), [], name="other", optimizer=ADAM),
            r"graph 'docqa' \(.*\) has 2 objectives: .*'model'.*'other' \(.*\); expected one",
            id="two objectives",
        ),
        pytest.param(
            lambda d: d.graph.pool(d.pages, d.features, capacity="1 GiB"),
            r"graph 'docqa' \(.*\) has pools at .*; expected one: join all features in it",
            id="two pools",
        ),
        pytest.param(
            lambda d: d.graph.add(Score(), d.model["answers"], freeze=True),
            r"stage 'score' \(.*\): has no weights; remove optimizer=, freeze= and dtype=",
            id="frozen sink",
        ),
        pytest.param(
            lambda d: d.graph.feedback(GradientReturn(), d.model["gradients"], to=d.features),
            r"feedback \(.*\): 'eye' has one already \(.*\); expected one per encoder",
            id="two feedbacks",
        ),
        pytest.param(
            lambda d: d.graph.evaluate(Pages(), through=d.pages, samples=8),
            r"evaluate \(.*\): nobody reads the answers; add graph.add\(Accuracy\(\), "
            r"model\['answers'\]\)",
            id="evaluation that nobody reads",
        ),
        pytest.param(
            lambda d: d.graph.evaluate(Pages(), through=d.features, samples=8),
            r"evaluate \(.*\): through='eye' is no source; pass the source's stream",
            id="evaluation through an encoder",
        ),
        pytest.param(
            lambda d: d.graph.evaluate(Pages(), through=d.pages, samples=1001),
            r"evaluate \(.*\): asks for 1001 samples, the source has 1000",
            id="more held-out samples than there are",
        ),
        pytest.param(
            lambda d: d.graph.evaluate(Numbers(), through=d.pages, samples=8),
            r"evaluate \(.*\): its source gives int, but 'pages', .* gives Sample",
            id="held-out samples of another type",
        ),
        pytest.param(
            lambda d: d.graph.evaluate(Score(), through=d.pages, samples=8),
            r"evaluate \(.*\): Score\(\) is no source; pass one, with held-out samples",
            id="evaluation of a sink",
        ),
        pytest.param(
            lambda d: d.graph.add(Score(), d.model["answers"], credits=Credits(size="much")),
            r"stage 'score' \(.*\): credits: size 'much' is not a size; write a number of bytes",
            id="credits that are no size",
        ),
    ],
)
def test_what_is_added_by_mistake(mistake: Mistake, message: str) -> None:
    """A stage, evaluation or feedback too much is refused with its line and a remedy."""
    assert re.search(message, problems(docqa(), mistake))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"step": Step(samples=0)},
            r"Step\(samples=\) is 0; expected a whole number of at least 1",
        ),
        ({"step": Step(samples=2000)}, r"'pages' \(.*\): has 1000 samples, fewer than one step of"),
        ({"steps": 2.5}, r"steps is 2.5; expected a whole number of at least 1"),
        ({"staleness": -1}, r"staleness is -1; expected a whole number of at least 0"),
        ({"clip_norm": 0.0}, r"clip_norm is 0.0; expected a positive number, or None"),
        ({"clip_norm": "1"}, r"clip_norm is '1'; expected a positive number, or None"),
        ({"dtype": "int8"}, r"dtype is 'int8'; expected one of"),
    ],
)
def test_settings_of_the_graph(settings: dict[str, Any], message: str) -> None:
    """A wrong number or word in Graph(...) is refused with its value and what it may be."""
    assert re.search(message, problems(docqa(**settings)))


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        ({"replicas": 0}, r"replicas is 0; expected a whole number of at least 1"),
        ({"window": 0}, r"window is 0; expected a whole number of at least 1"),
        ({"credits": Credits(items=0)}, r"credits items is 0; expected a whole number"),
        ({"activations": "drop"}, r"activations is 'drop'; expected 'stash' or 'recompute'"),
        ({"optimizer": None}, r"trains but has no optimizer; pass optimizer=AdamW\(lr=...\)"),
    ],
)
def test_placing_of_a_stage(placed: dict[str, Any], message: str) -> None:
    """A wrong number or word in graph.add(...) is refused with the stage, its line and value."""

    wrong = docqa(eye={"optimizer": ADAM, **placed})
    assert re.search(rf"stage 'eye' \(fakes_described.py:\d+\): {message}", problems(wrong))


@pytest.mark.parametrize(
    ("described", "message"),
    [
        pytest.param(
            docqa(source=Pages(size=None), steps=None),
            r"stage 'pages' \(.*\): has no end, and the graph no steps=; say how many to train",
            id="endless source without steps",
        ),
        pytest.param(
            docqa(returns=False),
            r"stage 'eye' \(.*\): trains, but no gradient returns to it; add graph.feedback\("
            r"GradientReturn\(\), gradients, to=eye\), or freeze=True",
            id="trainable encoder without feedback",
        ),
        pytest.param(
            docqa(capacity="300 KiB"),
            r"pool \(.*\): one pack of 1024 tokens has up to 256 KiB of features of 'eye', whose "
            r"share of capacity='300 KiB' is \d+ KiB; raise capacity= to at least \d+ bytes",
            id="pool smaller than one pack",
        ),
        pytest.param(
            docqa(model=Model(takes={"image": (32,)})),
            r"stage 'eye' \(.*\): a feature row has shape \(64,\), but stage 'model' \(.*\) takes "
            r"\(32,\) for 'image'; give both the same width",
            id="features of another width",
        ),
        pytest.param(
            docqa(model=Model(takes={"audio": (64,)})),
            r"stage 'eye' \(.*\): encodes 'image', but stage 'model' \(.*\) takes \['audio'\]",
            id="features that the objective has no place for",
        ),
        pytest.param(
            docqa(disk=-1),
            r"pool \(.*\): disk=-1; expected a number of bytes, 0 for no disk",
            id="disk of less than nothing",
        ),
    ],
)
def test_what_is_left_out(described: DocQA, message: str) -> None:
    """A graph that lacks what its run needs is refused with the remedy."""
    assert re.search(message, problems(described))


@pytest.mark.parametrize("capacity", [1000, "300 KiB"])
def test_the_advised_capacity_is_the_least_that_serves(capacity: int | str) -> None:
    """The advice is right at once, also where a worker's share was nothing at all."""
    found = re.search(r"capacity= to at least (\d+) bytes", problems(docqa(capacity=capacity)))
    assert found is not None
    check(docqa(capacity=int(found[1])).graph)
    assert "raise capacity=" in problems(docqa(capacity=int(found[1]) - 1))


@pytest.mark.parametrize(
    ("source", "to", "message"),
    [
        ("model", "pages", r"feedback \(.*\): to='pages' is no encoder; gradients return to"),
        ("packs", "features", r"feedback \(.*\): returns Gradients, but 'packs' gives Pack; pass"),
    ],
)
def test_feedback_that_returns_nothing(source: str, to: str, message: str) -> None:
    """Feedback carries an objective's gradients to an encoder, and nothing else anywhere else."""
    wrong = docqa(returns=False)
    wrong.graph.feedback(GradientReturn(), getattr(wrong, source), to=getattr(wrong, to))
    assert re.search(message, problems(wrong))


def test_cycle_without_feedback() -> None:
    """A cycle is refused by naming its stages and the only way back."""
    graph = Graph("round", step=Step(samples=1), steps=1)
    first = graph.add(clean, graph.add(Pages()), name="first")
    graph.connect(graph.add(clean, first, name="second"), to=first)
    with pytest.raises(
        GraphError, match=r"'first' \(test_refusals.py:\d+\): .* is a cycle"
    ) as found:
        check(graph)
    assert "first -> second -> first" in str(found.value)
    assert "graph.feedback(GradientReturn(), gradients, to=features)" in str(found.value)


def test_packer_without_a_pool() -> None:
    """A packer that reads samples directly is told to read a pool."""
    graph = Graph("docqa", step=Step(samples=64), steps=10)
    graph.add(Packs(), graph.add(Pages()))
    with pytest.raises(
        GraphError, match=r"'packs' .* takes Joined, but 'pages' gives Sample; a pack"
    ):
        check(graph)


def test_all_problems_at_once() -> None:
    """Problems that do not hide each other are listed together, one per line."""
    wrong = docqa(steps=0, staleness=-1, clip_norm=-1.0)
    assert len(problems(wrong).splitlines()) == 3
