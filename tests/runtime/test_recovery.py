"""A worker's death costs the run some time, and no sample."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from fakes import MixedSamples, small_graph
from fakes_faulty import BAD, faulty_graph
from running import Ran, run_graph
from torch import Tensor

from flowengine import Graph
from flowengine.api import Sample
from flowengine.checkpoint import find_checkpoint, open_checkpoint
from flowengine.errors import WorkerLostError
from flowengine.operators.vision import VisionEncoder
from flowengine.operators.vision.transformer import Patches
from flowengine.runtime.recovery import Recovery
from flowengine.runtime.start import BEGINNING

pytestmark = pytest.mark.slow


class DiesOnce(MixedSamples):
    """Kills its process on sample `at`, unless the file `mark` says that it has done so."""

    at: int = 0
    mark: str = ""

    def read(self, index: int) -> Sample:
        if index == self.at and not os.path.exists(self.mark):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


class Poisoned(MixedSamples):
    """Kills its process on sample BAD, every time."""

    def read(self, index: int) -> Sample:
        if index == BAD:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


class PoisonedEncoder(VisionEncoder):
    """Kills its process on a picture of `size` bytes, every time."""

    size: int = 0

    def batch(self, media: Sequence[Tensor]) -> Patches:
        if any(picture.nbytes == self.size and int(picture.sum()) == SUM for picture in media):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(media)


PICTURE = MixedSamples().read(BAD).items("image")[0]
SIZE, SUM = PICTURE.nbytes, int(PICTURE.sum())


def graph_of(source: MixedSamples, *, every: int = 2, steps: int = 6) -> Graph:
    graph = small_graph(steps=steps)
    graph.stage("source").what = source
    graph.checkpoint(every=every, keep_last=9)
    return graph


@pytest.mark.parametrize("at", [0, 35])
def test_a_death_changes_nothing(at: int, tmp_path: Path) -> None:
    """Losses and weights are those of a run in which nobody died, to the bit."""
    whole = run_graph(graph_of(MixedSamples()), tmp_path / "whole")
    source = DiesOnce(at=at, mark=str(tmp_path / "mark"))
    ran = run_graph(graph_of(source), tmp_path / "run", runtime="local", max_restarts=1)
    assert [step.step for step in ran.steps] == list(range(6))
    assert ran.losses == whole.losses
    for stage, weights in whole.weights.items():
        assert all(torch.equal(weights[name], ran.weights[stage][name]) for name in weights)
    (restart,) = ran.restarts
    assert restart.step % 2 == 0
    assert restart.step <= at // 8
    assert "was killed by SIGKILL" in restart.reason
    assert not ran.left_out


def test_restarts_are_limited(tmp_path: Path) -> None:
    """Deaths without end end the run, with the count."""
    with pytest.raises(WorkerLostError, match=r"with samples 4 in hand; .*\(after 1 restarts"):
        run_graph(graph_of(Poisoned()), tmp_path, runtime="local", max_restarts=1)


def test_a_poison_sample_becomes_a_dead_letter(tmp_path: Path) -> None:
    """After two deaths with it in hand it is left out, by id, and all else is trained."""
    ran = run_graph(graph_of(Poisoned()), tmp_path, runtime="local", max_restarts=4)
    assert_left_out(ran, tmp_path)
    assert len(ran.restarts) == 2


def test_a_poison_sample_in_a_pack_is_found(tmp_path: Path) -> None:
    """An encoder dies with a whole pack in hand: its samples go alone, until it is known which."""
    encoder = PoisonedEncoder(width=16, depth=1, heads=2, output=12, size=SIZE)
    graph = faulty_graph(encoder=encoder, steps=6, samples=8)
    graph.checkpoint(every=2)
    ran = run_graph(graph, tmp_path, runtime="local", max_restarts=4)
    assert_left_out(ran, tmp_path)
    assert len(ran.restarts) == 3


def assert_left_out(ran: Ran, run_dir: Path) -> None:
    """BAD is no more in the pool's catalogue after the last restart, and all others are."""
    assert ran.left_out == [BAD]
    assert [step.samples for step in ran.steps] == [7, 8, 8, 8, 8, 8]
    (letter,) = open_checkpoint(find_checkpoint(run_dir)).dead_letters
    assert letter["sample"] == BAD
    assert "SIGKILL" in letter["reason"]


def test_only_deaths_at_work_are_held_against_samples() -> None:
    """Two deaths of one worker at work on a sample make a dead letter; deaths of others with it in
    hand, or of one that waited, do not."""
    recovery = Recovery(BEGINNING, newest=lambda: None, max_restarts=9)

    def die(worker: str, *, at_work: bool) -> set[int]:
        lost = WorkerLostError("killed", worker=worker, samples=(7,), at_work=at_work)
        return set(recovery.restart(lost).left_out)

    assert die("source", at_work=True) == set()
    assert die("model", at_work=True) == set()
    assert die("source", at_work=False) == set()
    assert die("source", at_work=False) == set()
    assert die("source", at_work=True) == {7}
