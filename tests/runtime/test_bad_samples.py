"""What becomes of samples that an operator raises SampleError for: what the graph says, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes import MixedSamples, small_graph
from running import Ran, run_graph
from torch import Tensor

from flowengine import Graph, Skip, check, run
from flowengine.api import Lengths, Pack, Sample, SampleError
from flowengine.checkpoint import find_checkpoint, open_checkpoint
from flowengine.errors import GraphError, StageError
from flowengine.graph.description import BadSamples
from flowengine.operators.language import LanguageModel
from flowengine.operators.vision import VisionEncoder
from flowengine.runtime import Runtime, execute
from flowengine.runtime.events import Event, LeftOut, StepDone
from flowengine.runtime.start import DeadLetter, Start

BAD = (3, 9, 17)


class Broken(MixedSamples):
    """Samples whose lengths or, with the header right, whose body cannot be had."""

    without_header: tuple[int, ...] = ()
    without_body: tuple[int, ...] = ()

    def lengths(self, index: int) -> Lengths:
        if index in self.without_header:
            raise SampleError(f"record {index} has no header")
        return super().lengths(index)

    def read(self, index: int) -> Sample:
        if index in self.without_body:
            raise SampleError(f"record {index} does not decode")
        return super().read(index)


class Mistaken(MixedSamples):
    def read(self, index: int) -> Sample:
        raise ValueError(f"a mistake at {index}")


def graph_over(source: MixedSamples, policy: BadSamples, **settings: Any) -> Graph:
    graph = small_graph(steps=3, **settings)
    stage = graph.stage("source")
    stage.what, stage.bad_samples = source, policy
    return graph


def without(bad: Sequence[int], graph: Graph, tmp_path: Path) -> tuple[list[float], list[int]]:
    """The losses, and samples per step, of a run that leaves these out from the beginning."""
    steps: list[StepDone] = []

    def observe(event: Event) -> None:
        if isinstance(event, StepDone):
            steps.append(event)

    letters = tuple(DeadLetter(sample, "source", "") for sample in bad)
    start = Start(dead_letters=letters)
    execute(graph, runtime="inline", run_dir=tmp_path, observe=observe, start=start)
    return [step.loss for step in steps], [step.samples for step in steps]


def assert_left_out(ran: Ran, bad: Sequence[int], tmp_path: Path, **settings: Any) -> None:
    losses, samples = without(bad, small_graph(steps=3, **settings), tmp_path / "without")
    assert sorted(set(ran.left_out)) == list(bad)
    assert ran.losses == losses
    assert [step.samples for step in ran.steps] == samples


@pytest.mark.parametrize(
    ("policy", "runtime"),
    [
        ("dead-letter", "inline"),
        (Skip(limit=3), "inline"),
        pytest.param("dead-letter", "local", marks=pytest.mark.slow),
    ],
)
def test_a_source_leaves_bad_samples_out(
    policy: BadSamples, runtime: Runtime, tmp_path: Path
) -> None:
    """Also where only the body is broken, the step is planned without the sample: losses are, to
    the bit, those of a run that never meets it, and nothing is trained twice."""
    source = Broken(without_header=(9,), without_body=(3, 17))
    ran = run_graph(graph_over(source, policy), tmp_path / "run", runtime=runtime)
    assert not ran.restarts
    assert_left_out(ran, BAD, tmp_path)


@pytest.mark.parametrize("source", [Broken(without_header=(3,)), Broken(without_body=(3,))])
def test_the_default_is_an_error(source: MixedSamples, tmp_path: Path) -> None:
    """A bad sample ends the run, by name."""
    with pytest.raises(StageError, match=r"stage 'source' .* samples 3 in hand.*: record 3 "):
        run_graph(graph_over(source, "raise"), tmp_path)


def test_a_mistake_in_a_program_ends_the_run(tmp_path: Path) -> None:
    """Whatever the policy, only SampleError is about a sample."""
    with pytest.raises(StageError, match="ValueError: a mistake at 0"):
        run_graph(graph_over(Mistaken(), "dead-letter"), tmp_path)


def test_more_than_the_limit_ends_the_run(tmp_path: Path) -> None:
    """Skip counts over the whole training, also over a resumption."""
    source = Broken(without_body=BAD)
    graph = graph_over(source, Skip(limit=2))
    graph.checkpoint(every=1, keep_last=9)
    text = r"record 17 does not decode; it is bad sample 3 of 'source', bad_samples=Skip\(limit=2\)"
    with pytest.raises(StageError, match=text):
        run_graph(graph, tmp_path / "whole")
    half = tmp_path / "whole" / "checkpoints" / "step-00000001"
    with pytest.raises(StageError, match=text):
        run_graph(graph, tmp_path / "again", resume=half)


def test_a_resumed_run_leaves_out_the_same(tmp_path: Path) -> None:
    """Dead letters are part of a checkpoint: the resumed run does not look at them again, finds the
    later ones, and trains every other sample once."""
    graph = graph_over(Broken(without_body=BAD), "dead-letter")
    graph.checkpoint(every=1, keep_last=9)
    whole = run_graph(graph, tmp_path / "whole")
    half = tmp_path / "whole" / "checkpoints" / "step-00000001"
    letters = open_checkpoint(find_checkpoint(half)).dead_letters
    assert {"sample": 3, "stage": "source", "reason": "record 3 does not decode"} in letters
    again = run_graph(graph, tmp_path / "again", resume=half)
    assert again.losses == whole.losses[1:]
    assert [s.samples for s in again.steps] == [s.samples for s in whole.steps[1:]]
    assert Counter(again.left_out) == Counter(BAD)


class Fussy(VisionEncoder):
    """Refuses the media of some samples, which only it can tell: those of these numbers of rows."""

    refused: tuple[int, ...] = ()

    def batch(self, media: Sequence[Tensor]) -> Any:
        for item in media:
            if item.numel() in self.refused:
                raise SampleError(f"{item.numel()} pixels are too many")
        return super().batch(media)


def pixels(index: int) -> int:
    return sum(item.numel() for item in MixedSamples().read(index).items("image"))


@pytest.mark.parametrize(
    ("runtime", "every"),
    [("inline", 0), ("inline", 1), pytest.param("local", 1, marks=pytest.mark.slow)],
)
def test_an_encoder_leaves_bad_samples_out(runtime: Runtime, every: int, tmp_path: Path) -> None:
    """What is refused behind the plan sends the run back to its last checkpoint, or its beginning,
    without the sample: the losses are those of a run that never meets it."""
    sizes = {index: pixels(index) for index in range(24)}
    wanted = sizes[next(index for index in range(8, 24) if sizes[index])]
    bad = [index for index in range(24) if sizes[index] == wanted]
    graph = small_graph(steps=3)
    stage = graph.stage("encoder")
    stage.what = Fussy(width=16, depth=1, heads=2, output=12, refused=(wanted,))
    with pytest.raises(StageError, match="pixels are too many"):
        run_graph(graph, tmp_path / "raises")
    stage.bad_samples = "dead-letter"
    if every:
        graph.checkpoint(every=every)
    ran = run_graph(graph, tmp_path / "run", runtime=runtime)
    assert len(ran.restarts) == len(bad)
    assert_left_out(ran, bad, tmp_path)


class Choosy(LanguageModel):
    """Refuses packs with some samples, without saying which."""

    refused: tuple[int, ...] = ()

    def loss(self, module: Any, pack: Pack) -> Tensor:
        if set(pack.ids) & set(self.refused):
            raise SampleError("a sample of this pack is too odd")
        return super().loss(module, pack)


def test_the_bad_sample_of_a_pack_is_found(tmp_path: Path) -> None:
    """Where a pack is refused as a whole, its samples get packs of their own; the bad one is left
    out, the others are trained."""
    graph = small_graph(steps=3)
    stage = graph.stage("model")
    model: Any = stage.what
    stage.what = Choosy(
        **{name: getattr(model, name) for name in ("vocabulary", "width", "depth")},
        heads=2,
        groups=1,
        refused=(11,),
    )
    stage.bad_samples = Skip(limit=1)
    ran = run_graph(graph, tmp_path)
    assert set(ran.left_out) == {11}
    assert [step.samples for step in ran.steps] == [8, 7, 8]
    stage.what.refused = (11, 12)
    with pytest.raises(StageError, match="it is bad sample 2 of 'model'"):
        run_graph(graph, tmp_path / "more")


def test_the_table_says_why(tmp_path: Path) -> None:
    """dead_letters.parquet has a row per sample, also those of the packer's policy."""
    graph = graph_over(Broken(without_body=BAD), "dead-letter")
    run(graph, runtime="inline", run_dir=tmp_path / "run")
    rows = pq.read_table(tmp_path / "run" / "dead_letters.parquet").to_pylist()
    assert [(row["sample"], row["stage"], row["reason"]) for row in rows] == [
        (sample, "source", f"record {sample} does not decode") for sample in BAD
    ]
    assert all(row["wall_s"] >= 0 for row in rows)


def test_a_held_out_sample_may_be_bad(tmp_path: Path) -> None:
    """It is left out of every evaluation, and told once, below zero."""
    graph = small_graph(steps=2, evaluate=4)
    graph.evaluations[0].source = Broken(seed=1, without_body=(2,))
    graph.evaluations[0].every = 1
    graph.stage("source").bad_samples = "dead-letter"
    told: list[int] = []

    def observe(event: Event) -> None:
        if isinstance(event, LeftOut):
            told.append(event.sample)

    execute(graph, runtime="inline", run_dir=tmp_path, observe=observe)
    assert told == [-3]


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("ignore", r"bad_samples is 'ignore'; expected 'raise', 'dead-letter' or Skip\(limit=\)"),
        (Skip(limit=0), r"Skip\(limit=\) is 0; expected a whole number above 0"),
    ],
)
def test_other_policies_are_refused(policy: Any, text: str) -> None:
    """Before the run."""
    with pytest.raises(GraphError, match=text):
        check(graph_over(MixedSamples(), policy))


def test_only_so_many_bytes_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound a sample is read again, and is the same."""
    from flowengine.runtime import intake
    from flowengine.runtime.intake import Intake, Member

    spec = graph_over(MixedSamples(), "dead-letter").stage("source")
    reads: Counter[int] = Counter()

    class Counting(MixedSamples):
        def read(self, index: int) -> Sample:
            reads[index] += 1
            return super().read(index)

    source, members = Counting(), [Member(i, i, None) for i in range(4)]
    sizes = [intake.count_bytes(source.read(i)) for i in range(4)]
    reads.clear()
    monkeypatch.setattr(intake, "AHEAD_BYTES", sizes[0] + sizes[1])
    taken = Intake(spec, letters=(), leave_out=lambda *_: None)
    for member in members:
        assert taken.measure(source, member, planned=True) is not None
    for member in members:
        taken.read(source, member)
    assert [reads[i] for i in range(2)] == [1, 1]
    assert sum(reads.values()) > 4
