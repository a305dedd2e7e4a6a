"""Samples that no pack holds are left out where the graph says so: by name, and nothing else."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from fakes import MixedSamples, small_graph
from running import run_graph

from flowengine import Graph
from flowengine.checkpoint import find_checkpoint, open_checkpoint
from flowengine.errors import StageError
from flowengine.operators.packing import CostPacker
from flowengine.runtime.start import DeadLetter, start_behind

LIMIT = 12
LENGTHS = [MixedSamples().lengths(index) for index in range(32)]
TOO_LONG = [index for index, each in enumerate(LENGTHS) if each.tokens > LIMIT]


def graph(packer: CostPacker) -> Graph:
    graph = small_graph(steps=4)
    graph.stage("packer").what = packer
    graph.checkpoint(every=2, keep_last=9)
    return graph


@pytest.fixture
def packer() -> CostPacker:
    return CostPacker(max_tokens=LIMIT, too_long="dead-letter")


def test_long_samples_are_left_out(packer: CostPacker, tmp_path: Path) -> None:
    """Each is told once, with its length; every other sample is trained."""
    assert TOO_LONG
    ran = run_graph(graph(packer), tmp_path)
    assert ran.left_out == TOO_LONG
    for step in ran.steps:
        kept = [i for i in range(8 * step.step, 8 * step.step + 8) if i not in TOO_LONG]
        assert step.samples == len(kept)
        assert step.tokens == sum(LENGTHS[i].tokens for i in kept)
        assert step.targets == sum(LENGTHS[i].targets for i in kept)


def test_the_checkpoint_names_them(packer: CostPacker, tmp_path: Path) -> None:
    """The manifest holds those of the steps behind it, and a resumed run tells of all."""
    run_graph(graph(packer), tmp_path / "run")
    letters = open_checkpoint(find_checkpoint(tmp_path / "run")).dead_letters
    assert [letter["sample"] for letter in letters] == TOO_LONG
    first = TOO_LONG[0]
    told = f"sample {first} has {LENGTHS[first].tokens} tokens, a pack holds {LIMIT}"
    assert letters[0] == asdict(DeadLetter(first, "packer", told))
    half = tmp_path / "run" / "checkpoints" / "step-00000002"
    assert start_behind(graph(packer), half).left_out >= {i for i in TOO_LONG if i < 16}
    again = run_graph(graph(packer), tmp_path / "again", resume=half)
    assert sorted(again.left_out) == TOO_LONG


def test_rows_may_be_what_is_too_many(tmp_path: Path) -> None:
    """A packer's own limits are held as well."""
    packer = CostPacker(max_tokens=64, max_rows={"image": 4}, too_long="dead-letter")
    ran = run_graph(graph(packer), tmp_path)
    assert ran.left_out == [i for i, each in enumerate(LENGTHS) if each.media["image"] > 4]


def test_the_default_is_an_error(tmp_path: Path) -> None:
    """Without a word on it, nothing is left out."""
    with pytest.raises(StageError, match=rf"stage 'packer' .*: sample {TOO_LONG[0]} has .* or "):
        run_graph(graph(CostPacker(max_tokens=LIMIT)), tmp_path)
