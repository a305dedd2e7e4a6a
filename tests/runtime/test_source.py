"""What is trained, and how often: every sample once, whatever the end of the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import MixedSamples, small_graph
from fakes_faulty import faulty_graph
from fakes_plain import Numbers, double, plain_graph
from running import run_graph

from flowengine import check
from flowengine.api import Context, Lengths, Sample
from flowengine.errors import GraphError
from flowengine.operators.packing import CostPacker
from flowengine.runtime import Runtime

RUNTIMES = ["inline", pytest.param("local", marks=pytest.mark.slow)]
both = pytest.mark.parametrize("runtime", RUNTIMES)


@both
@pytest.mark.parametrize(("total", "size"), [(10, 4), (8, 4), (5, 5)])
def test_a_finite_source_is_gathered_once(
    total: int, size: int, runtime: Runtime, tmp_path: Path
) -> None:
    """Without steps= a run takes ceil(n / size) steps, the last of which holds what is left."""
    graph = plain_graph(double, source=Numbers(total=total), samples=size, steps=None)
    ran = run_graph(graph, tmp_path, runtime=runtime)
    sizes = [len(report.value) for report in ran.reports]
    assert len(sizes) == -(-total // size)
    assert sizes[:-1] == [size] * (len(sizes) - 1)
    assert [v for report in ran.reports for v, _ in report.value] == [2 * i for i in range(total)]


@pytest.mark.parametrize("replicas", [1, 2, 7])
def test_every_sample_is_trained_once(replicas: int, tmp_path: Path) -> None:
    """Every sample of a finite source is trained in one step, which counts it; its features are
    made once and their gradient returns once."""
    graph = small_graph(steps=None, total=21, samples=8, replicas=replicas)
    ran = run_graph(graph, tmp_path)
    assert [step.samples for step in ran.steps] == [8, 8, 5]
    source = MixedSamples(total=21)
    assert sum(step.tokens for step in ran.steps) == sum(
        source.lengths(i).tokens for i in range(21)
    )
    rows = ran.rows("encoder")
    assert sorted(row["sample"] for row in rows) == [i for i in range(21) if i % 3 != 2]
    assert all(row["step"] == row["sample"] // 8 for row in rows)
    assert {row["state"] for row in rows} == {"gradient"}


def test_steps_beyond_the_end_begin_again(tmp_path: Path) -> None:
    """With steps= a finite source is read from its start again, under new ids."""
    graph = plain_graph(double, source=Numbers(total=5), samples=4, steps=3)
    ran = run_graph(graph, tmp_path)
    assert [[v for v, _ in report.value] for report in ran.reports] == [
        [0, 2, 4, 6],
        [8, 0, 2, 4],
        [6, 8, 0, 2],
    ]
    ran = run_graph(small_graph(steps=4, total=10, samples=8), tmp_path)
    assert Counter(row["sample"] % 10 for row in ran.rows("encoder")) == {
        i: 3 + (i < 2) for i in range(10) if i % 3 != 2
    }


def test_two_passes_of_one_step_are_two_runs_of_its_losses(tmp_path: Path) -> None:
    """The second time around the same samples come in the same order."""
    short = run_graph(small_graph(steps=3, total=8, samples=8), tmp_path / "short")
    endless = run_graph(small_graph(steps=3, samples=8), tmp_path / "endless")
    assert short.losses[0] == endless.losses[0]
    assert short.losses[1] != endless.losses[1]
    assert len({(step.tokens, step.targets) for step in short.steps}) == 1


@both
@pytest.mark.parametrize(("every", "after"), [(0, [5]), (2, [2, 4, 5]), (5, [5])])
def test_evaluations_come_in_their_time(
    every: int, after: list[int], runtime: Runtime, tmp_path: Path
) -> None:
    """A sink hears of the same held-out samples after every k steps and after the last one."""
    graph = small_graph(steps=5, evaluate=6, samples=4)
    object.__setattr__(graph.evaluations[0], "every", every)
    ran = run_graph(graph, tmp_path, runtime=runtime)
    assert [(report.step, report.value["samples"]) for report in ran.reports] == [
        (step, 6) for step in after
    ]
    held_out = Counter(row["sample"] for row in ran.rows("encoder") if row["held_out"])
    assert held_out == {-1 - i: len(after) for i in range(6) if i % 3 != 2}


def test_evaluating_changes_nothing(tmp_path: Path) -> None:
    """A run with evaluations has the losses of the run without."""
    graph = small_graph(steps=4, evaluate=6)
    object.__setattr__(graph.evaluations[0], "every", 1)
    evaluated = run_graph(graph, tmp_path / "with")
    plain = run_graph(small_graph(steps=4), tmp_path / "without")
    assert evaluated.losses == plain.losses


def test_a_source_without_end_needs_steps() -> None:
    """An endless source without steps= is refused before the run."""
    with pytest.raises(GraphError, match=r"stage 'source' .*has no end, and the graph no steps="):
        check(plain_graph(double, steps=None))


class Noted(MixedSamples):
    """Writes down what is called, in a file, for it may be called in another process."""

    def open(self, context: Context) -> None:
        self._file = (context.run_dir / f"source {self.seed}").open("a")
        self._note("open", context.stage)

    def lengths(self, index: int) -> Lengths:
        self._note("lengths", index)
        return super().lengths(index)

    def read(self, index: int) -> Sample:
        self._note("read", index)
        return super().read(index)

    def flush(self) -> None:
        self._note("flush", "")

    def close(self) -> None:
        self._note("close", "")
        self._file.close()

    def _note(self, what: str, about: Any) -> None:
        self._file.write(f"{what} {about}".strip() + "\n")


class NotedPacker(CostPacker):
    """The same, for a packer."""

    def open(self, context: Context) -> None:
        self._file = (context.run_dir / "packer").open("a")
        self._file.write(f"open {context.stage}\n")

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        self._file.write(f"plan {len(lengths)}\n")
        return super().plan(lengths)

    def flush(self) -> None:
        self._file.write("flush\n")

    def close(self) -> None:
        self._file.write("close\n")
        self._file.close()


@both
def test_operators_live_their_lives(runtime: Runtime, tmp_path: Path) -> None:
    """A source and a packer are opened first, flushed after every step and evaluation, and closed
    last; the lengths of a step are asked before any of its samples is read."""
    graph = faulty_graph(
        source=Noted(), held_out=Noted(seed=1), packer=NotedPacker(max_tokens=32), steps=2
    )
    run_graph(graph, tmp_path, runtime=runtime)
    lines = {
        name: (tmp_path / name).read_text().splitlines()
        for name in ("source 0", "source 1", "packer")
    }
    steps = [range(4), range(4, 8)]
    wanted = [
        line
        for step in steps
        for line in [
            *(f"lengths {i}" for i in step),
            *sorted(f"read {i}" for i in step),
            "flush",
        ]
    ]
    assert lines["source 0"][0] == "open source"
    assert lines["source 0"][-1] == "close"
    assert sorted(lines["source 0"][1:6]) == sorted([*wanted[:4], "read 0"])
    assert sorted(lines["source 0"][1:-1]) == sorted(wanted)
    assert [line for line in lines["source 1"] if not line.startswith(("read", "lengths"))] == [
        "open source",
        "flush",
        "close",
    ]
    assert lines["packer"] == ["open packer", *["plan 4", "flush"] * 3, "close"]
