"""Samples may be left to the next step: each once, all of them trained, and counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes import small_graph
from running import run_graph

from flowengine import Graph, launch
from flowengine.api import Lengths
from flowengine.operators.packing import CostPacker


def deferring(*, steps: int, most: int = 2) -> Graph:
    graph = small_graph(steps=steps)
    graph.stage("packer").what = CostPacker(max_tokens=16, max_deferred=most)
    return graph


def trained(run_dir: Path) -> list[tuple[int, int]]:
    """(sample, step) of all that was trained."""
    packs = pq.read_table(run_dir / "packs.parquet").to_pylist()
    return [(sample, pack["step"]) for pack in packs for sample in pack["sample_ids"]]


def test_every_sample_is_trained_once(tmp_path: Path) -> None:
    """Every sample is in its own step or the next, once; the report counts those of the next."""
    report = launch.run(deferring(steps=8), runtime="inline", run_dir=tmp_path / "run")
    found = trained(tmp_path / "run")
    assert sorted(sample for sample, _ in found) == list(range(64))
    late = Counter(step - sample // 8 for sample, step in found)
    assert set(late) == {0, 1}
    assert report["deferred"] == late[1] > 0
    plain = launch.run(deferring(steps=8, most=0), runtime="inline", run_dir=tmp_path / "plain")
    assert plain["deferred"] == 0
    assert report["pool"]["packs"] < plain["pool"]["packs"]


def test_deferred_samples_survive_a_checkpoint(tmp_path: Path) -> None:
    """A resumed run trains what the step before its checkpoint left over, with the same losses."""
    whole = run_graph(deferring(steps=8), tmp_path / "whole")
    for steps in range(1, 8):
        if whole.steps[steps - 1].deferred:
            break
    stopped = deferring(steps=8)
    stopped.checkpoint(every=steps, keep_last=9)
    run_graph(stopped, tmp_path / "stopped")
    behind = tmp_path / "stopped" / "checkpoints" / f"step-{steps:08d}"
    resumed = run_graph(deferring(steps=8), tmp_path / "resumed", resume=behind)
    assert resumed.losses == whole.losses[steps:]
    assert [step.samples for step in resumed.steps] == [s.samples for s in whole.steps[steps:]]


@pytest.mark.parametrize(
    ("tokens", "may", "expected"),
    [
        ([6, 6, 4], [True, True, True], [0]),  # with 6 and 4 left, one pack does
        ([6, 6, 4], [False, True, True], [1]),
        ([6, 6, 4], [False, False, True], []),
        ([9, 9, 9, 3], [True] * 4, [3]),
        ([5, 5, 5, 5], [True] * 4, []),  # it would take two
        ([5], [True], []),  # the only pack stays
        ([], [], []),
    ],
)
def test_what_is_deferred(tokens: list[int], may: list[bool], expected: list[int]) -> None:
    """The shortest sample without which a pack is saved, if it may be deferred."""
    lengths = [Lengths(tokens=count, targets=1) for count in tokens]
    packer = CostPacker(max_tokens=10, max_deferred=1)
    assert packer.defer(lengths, may=may) == expected
    assert CostPacker(max_tokens=10).defer(lengths, may=may) == []
