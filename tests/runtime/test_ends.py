"""How runs end: after a death at the very end, and early, whoever hears of it first."""

from __future__ import annotations

from pathlib import Path

import torch
from fakes import small_graph
from running import run_graph

from flowengine.channel import Kind, Message
from flowengine.checkpoint import find_checkpoint, open_checkpoint
from flowengine.errors import WorkerLostError
from flowengine.runtime.events import Event, StepDone
from flowengine.runtime.inline import InlineRun
from flowengine.runtime.recovery import Recovery
from flowengine.runtime.start import BEGINNING, DeadLetter, Start, start_behind_newest
from flowengine.runtime.topology import COORDINATOR


def test_a_death_behind_the_last_checkpoint(tmp_path: Path) -> None:
    """A run whose last checkpoint is made and whose worker then dies goes on from there: it trains
    nothing more, and writes its weights."""
    graph = small_graph(steps=3)
    graph.checkpoint()
    ran = run_graph(graph, tmp_path)
    start = start_behind_newest(graph, tmp_path)
    assert start is not None
    assert (start.step, start.losses) == (3, tuple(ran.losses))
    for file in (tmp_path / "weights").iterdir():
        file.unlink()
    told: list[Event] = []
    InlineRun(graph, run_dir=tmp_path, observe=told.append, start=start).run()
    assert not any(isinstance(event, StepDone) for event in told)
    assert {file.stem for file in (tmp_path / "weights").iterdir()} == set(ran.weights)


def test_a_trained_sample_becomes_no_dead_letter() -> None:
    """Samples that a worker last had in hand are behind the checkpoint: who dies then is no proof
    against them. Those ahead of it, left over or held out are left out after two deaths."""
    letter = DeadLetter(2, "source", "known before")
    newest = Start(step=2, first_sample=16, dead_letters=(letter,), plans={"deferred": [14]})
    recovery = Recovery(BEGINNING, newest=lambda: newest, max_restarts=9)
    for sample in (15, 14, 16, -1):
        for _ in range(2):
            start = recovery.restart(WorkerLostError("gone", worker="model", samples=(sample,)))
    assert start.left_out == {2, 14, 16, -1}


def test_the_end_of_the_stream_tells_why(tmp_path: Path) -> None:
    """Also a stage that the supervisor's word has not reached knows, by the end of its input, that
    the run was told to finish; so all parts of the last checkpoint are there."""

    class Deaf(InlineRun):
        def _post(self, sender: int, to: int, message: Message) -> None:
            if message[:2] == (Kind.NOTICE, "plan") and message[2] == 1:
                super()._post(COORDINATOR, 0, (Kind.NOTICE, "finish"))
            super()._post(sender, to, message)

    graph = small_graph(steps=6)
    told: list[Event] = []
    Deaf(graph, run_dir=tmp_path, observe=told.append).run()
    assert [event.step for event in told if isinstance(event, StepDone)] == [0, 1]
    manifest = open_checkpoint(find_checkpoint(tmp_path))
    assert (manifest.step, manifest.parts) == (2, ["encoder", "model"])
    assert torch.isfinite(torch.tensor(manifest.losses)).all()
