"""Memory stays within the bounds that the user set, and what never fits is an error at once."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import VOCABULARY, MixedSamples
from fakes_faulty import faulty_graph
from fakes_plain import Gather, Number, Numbers, double, plain_graph
from fakes_slow import SlowInline, SlowModel
from running import Ran, run_graph

from flowengine import Credits, Graph, Step
from flowengine.api import Operator, Source
from flowengine.channel import ROW_BYTES, Kind, Message
from flowengine.errors import StageError, StallError
from flowengine.operators.packing import CostPacker
from flowengine.runtime import Runtime, execute
from flowengine.runtime.events import Status
from flowengine.runtime.inline import InlineRun
from flowengine.runtime.local import LocalRun

TIGHT = "12 KiB"
"""A page of it for the encoder: room for the features of two or three packs."""

WIDER = "20 KiB"
"""The same for two encoders."""


def causes(ran: Ran, stage: str) -> set[str]:
    """What a stage waited for."""
    assert ran.done is not None
    return {c for status in ran.done.status.stages if status.stage == stage for c in status.causes}


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [{}, {"staleness": 2}, {"freeze": True}, {"replicas": 2, "capacity": WIDER}], ids=str
)
@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_the_encoder_stops_at_the_capacity(
    runtime: Runtime, setting: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ahead of a slow objective an encoder fills its share of the pool, says so, and waits; the
    bytes in the pool never exceed its capacity, and the run goes on to its end."""
    monkeypatch.setattr(sys.modules[execute.__module__], "InlineRun", SlowInline)
    model = SlowModel(vocabulary=VOCABULARY, width=12, depth=1, heads=2, groups=1)
    packer = CostPacker(max_tokens=32)
    graph = faulty_graph(model=model, packer=packer, samples=60, **{"capacity": TIGHT, **setting})
    ran = run_graph(graph, tmp_path, runtime=runtime)
    if runtime == "inline":  # Over processes it depends on who gets the cores.
        assert "blocked: room in the pool" in causes(ran, "encoder")
    assert ran.done is not None
    pool = ran.done.status.pool
    assert 2048 < pool.peak_bytes <= pool.capacity_bytes <= graph.joins[0].capacity
    assert pool.used_bytes == 0


@pytest.mark.parametrize("items", [1, 2, 1024])
def test_rows_in_a_channel_never_exceed_its_credits(items: int, tmp_path: Path) -> None:
    """Rows that were sent and whose consumer is not done with them are at most the credits, in
    items and in bytes; nothing is lost by waiting."""
    graph = plain_graph(double, double, credits=Credits(items=items, size="1 KiB"), samples=30)
    peaks: dict[int, tuple[int, int]] = {}

    class Counting(InlineRun):
        def _post(self, sender: int, to: int, message: Message) -> None:
            super()._post(sender, to, message)
            if message[0] == Kind.ROWS:
                outlet = self._stages[sender]._outlets[message[1]]
                out = outlet.bound_items - outlet.items, outlet.bound_bytes - outlet.num_bytes
                peaks[message[1]] = max(peaks.get(message[1], (0, 0)), out)

    seen: list[object] = []
    Counting(graph, run_dir=tmp_path, observe=seen.append).run()
    for rows, size in peaks.values():
        assert 1 <= rows <= items
        assert rows * ROW_BYTES < size <= 1024
    assert len(peaks) == 3


@dataclass(frozen=True)
class Letter:
    text: str


class Letters(Source[Letter]):
    """Long texts, without a tensor in them."""

    def read(self, index: int) -> Letter:
        return Letter(f"{index:01000}")


class Count(Operator):
    """Counts letters, and tells nobody."""

    def process(self, letter: Letter) -> None:
        assert len(letter.text) == 1000


def test_texts_need_credits_too(tmp_path: Path) -> None:
    """Text in a row counts for its bytes: a channel of 2 KiB holds one row of 1,000 letters, and
    none of a channel of 1,000 bytes."""
    graph = Graph("letters", step=Step(samples=8), steps=1)
    graph.add(Count(), graph.add(Letters()), credits=Credits(size="2 KiB"))
    run_graph(graph, tmp_path / "wide")
    graph = Graph("letters", step=Step(samples=8), steps=1)
    graph.add(Count(), graph.add(Letters()), credits=Credits(size=1000))
    with pytest.raises(StageError, match=r"1 rows of 11\d\d bytes go to 'count' at once"):
        run_graph(graph, tmp_path / "narrow")


class Broad(Numbers):
    """Numbers that take 256 MiB each once they are written down."""

    def read(self, index: int) -> Number:
        return Number(index, torch.zeros(1).expand(2**26))


@pytest.mark.parametrize("runtime", ["inline", pytest.param("local", marks=pytest.mark.slow)])
def test_a_value_larger_than_the_pool_is_an_error(runtime: Runtime, tmp_path: Path) -> None:
    """A payload that would never fit ends the run with its size, the share and a remedy."""
    graph = plain_graph(double, source=Broad())
    with pytest.raises(
        StageError,
        match=r"stage 'source' .*a payload of 268435456 bytes exceeds this worker's share of the "
        r"pool, 134217728 bytes; raise the pool's capacity=, or make packs smaller",
    ):
        run_graph(graph, tmp_path, runtime=runtime)


class Wide(MixedSamples):
    """Samples whose pictures are large."""

    def _sizes(self, index: int) -> tuple[int, int]:
        return 40, 3 + index % 2


@pytest.mark.parametrize(
    ("credits", "message"),
    [
        (
            Credits(items=3),
            r"stage 'source'.*: \d+ rows of \d+ bytes go to '(encoder|packer)' at once, its "
            r"channel holds 3 rows and 16777216 bytes; raise its credits=Credits\(items=, size=\)",
        ),
        (
            Credits(size=1200),
            r"stage 'source'.*: \d+ rows of \d+ bytes go to 'encoder' at once, its channel holds "
            r"1024 rows and 1200 bytes; raise its credits",
        ),
    ],
    ids=["items", "bytes"],
)
def test_a_pack_larger_than_its_channel_is_an_error(
    credits: Credits, message: str, tmp_path: Path
) -> None:
    """A pack that a channel can never hold ends the run with both sizes and a remedy."""
    graph = faulty_graph(credits=credits, packer=CostPacker(max_tokens=64), samples=12)
    with pytest.raises(StageError, match=message):
        run_graph(graph, tmp_path)


def test_a_pack_too_large_for_the_objectives_channel_is_an_error(tmp_path: Path) -> None:
    """Also where only the whole pack is too large: the rows of its members and features together
    are one row."""
    graph = faulty_graph(packer=CostPacker(max_tokens=64), samples=12)
    graph.stage("model").credits = Credits(size=1200)
    with pytest.raises(
        StageError,
        match=r"stage 'packer'.*: pack 0 has \d+ bytes of rows, the channel to 'model' holds 1200; "
        r"raise its credits=Credits\(size=\)",
    ):
        run_graph(graph, tmp_path)


def test_pictures_larger_than_the_sources_share_are_an_error(tmp_path: Path) -> None:
    """A pack's pictures must fit in the source's share of the pool, or the run ends with a
    remedy instead of waiting for room."""
    graph = faulty_graph(source=Wide(), packer=CostPacker(max_tokens=64), capacity="32 KiB")
    with pytest.raises(
        StageError, match=r"stage 'source' .*a payload of 30720 bytes exceeds this worker's share"
    ):
        run_graph(graph, tmp_path)


class Hoard(Operator):
    """Keeps all that it gets."""

    def __post_init__(self) -> None:
        self.kept: list[Number] = []

    def process(self, number: Number) -> None:
        self.kept.append(number)


@pytest.mark.slow
def test_a_stall_is_found_over_processes(tmp_path: Path) -> None:
    """Where nothing can go on, the local runtime says after `stall_s` who waits for what."""
    graph = plain_graph(sink=Hoard(), source=Numbers(size=2**24), steps=3)
    told: list[object] = []
    run = LocalRun(graph, run_dir=tmp_path, observe=told.append, stall_s=0.5)
    with pytest.raises(
        StallError,
        match=r"nobody is at work; the root cause is at .*:\n  source\[0\] is blocked for \d+ s, "
        r"waiting for room in the pool, that is for sink; 256 MiB of the pool's "
        r"256 MiB are in use\n  sink\[0\] is starved for \d+ s, "
        "waiting for rows from source, that is for source",
    ):
        run.run()
    assert any(isinstance(event, Status) for event in told)


class Ponder(Operator):
    """Takes longer to flush than a stall may last."""

    def process(self, number: Number) -> None:
        pass

    def flush(self) -> None:
        square = torch.eye(256)
        for _ in range(1500):
            square = square @ square


@pytest.mark.slow
def test_long_work_is_no_stall(tmp_path: Path) -> None:
    """A stage that works for longer than `stall_s`, also between samples, is not stalled."""
    graph = plain_graph(sink=Ponder(), steps=1)
    LocalRun(graph, run_dir=tmp_path, observe=lambda _: None, stall_s=0.3).run()


def test_one_credit_is_enough(tmp_path: Path) -> None:
    """A graph of functions runs to its end with one credit per channel."""
    graph = plain_graph(double, double, double, sink=Gather(), credits=Credits(items=1))
    ran = run_graph(graph, tmp_path)
    assert [len(report.value) for report in ran.reports] == [4, 4, 4]
