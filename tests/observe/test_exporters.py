"""Prometheus and TensorBoard: what other programs are told. OpenTelemetry has its own module."""

from __future__ import annotations

import struct
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.errors import FlowError
from flowengine.observe.otel import OpenTelemetry
from flowengine.observe.prometheus import Prometheus
from flowengine.observe.tensorboard import TensorBoard
from flowengine.runtime.events import (
    ChannelStatus,
    Event,
    PoolStatus,
    Reported,
    RunStarted,
    StageStatus,
    Status,
    StepDone,
)

EVENTS: list[Event] = [
    RunStarted("toy", "local", Path("runs/toy"), 3, ("pages", "eye")),
    StepDone(0, 1.0, 0.5, 8, 80, 8, 1, 0.9, None, {"eye": 0}, {"eye": 0.1}),
    StepDone(1, 2.0, 0.25, 8, 80, 8, 1, 0.9, 1.5, {"eye": 2}, {"eye": 0.2}),
    Reported("score", 2, 2.0, "accuracy", 0.75),
    Reported("score", 2, 2.0, "by_kind", {"count": 0.5, "name": "x"}),
    Status(
        2.0,
        (StageStatus("eye", 1, "busy", "", 1.5, 0.5, 0.25),),
        PoolStatus(10, 20, 30),
        (ChannelStatus("pages", "eye[1]", "sample", 3, 64, 4096, 2**20),),
    ),
]


@pytest.fixture
def endpoint() -> Iterator[Prometheus]:
    pytest.importorskip("prometheus_client", reason="the extra 'metrics' is not installed")
    endpoint = Prometheus(port=0)
    yield endpoint
    endpoint.close()


def test_prometheus(endpoint: Prometheus) -> None:
    """The endpoint on loopback gives totals, the last step, the stages, pool and channels."""
    for event in EVENTS:
        endpoint(event)
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    for expected in (
        "flowengine_steps_asked 3.0",
        "flowengine_steps_total 2.0",
        "flowengine_samples_total 16.0",
        "flowengine_loss 0.25",
        "flowengine_gradient_norm 1.5",
        'flowengine_staleness_steps{stage="eye"} 2.0',
        'flowengine_result{name="accuracy",stage="score"} 0.75',
        "flowengine_pool_bytes 10.0",
        'flowengine_stage_seconds_total{replica="1",stage="eye",state="busy"} 1.5',
        'flowengine_channel_rows{consumer="eye[1]",port="sample",producer="pages"} 3.0',
    ):
        assert expected in lines


def test_prometheus_listens_on_loopback(endpoint: Prometheus) -> None:
    """Nobody else's address is listened on unless asked for."""
    assert endpoint.host == "127.0.0.1"


def test_port_in_use(endpoint: Prometheus) -> None:
    """A port that is taken is named, before the run."""
    with pytest.raises(FlowError, match=rf"cannot listen on 127.0.0.1:{endpoint.port}: "):
        Prometheus(port=endpoint.port)


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("prometheus_client", lambda _: Prometheus(port=0), "metrics"),
        ("tensorboardX", TensorBoard, "tensorboard"),
        ("opentelemetry.sdk.resources", lambda _: OpenTelemetry(["METRICS"]), "otel"),
    ],
)
def test_without_the_library(
    module: str, make: Any, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its library an exporter says what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FlowError, match=rf"run: pip install 'flowengine\[{extra}\]'"):
        make(tmp_path)


def test_tensorboard(tmp_path: Path) -> None:
    """The event file holds every scalar at its step; what is no number is left out."""
    pytest.importorskip("tensorboardX", reason="the extra 'tensorboard' is not installed")
    board = TensorBoard(tmp_path / "board")
    for event in EVENTS:
        board(event)
    board.close()
    (path,) = (tmp_path / "board").iterdir()
    found = scalars(path.read_bytes())
    assert found["train/loss"] == [(0, 0.5), (1, 0.25)]
    assert found["train/gradient_norm"] == [(1, 1.5)]
    assert found["staleness/eye"] == [(0, 0.0), (1, 2.0)]
    assert found["score/accuracy"] == [(2, 0.75)]
    assert found["score/by_kind/count"] == [(2, 0.5)]
    assert "score/by_kind/name" not in found


def scalars(records: bytes) -> dict[str, list[tuple[int, float]]]:
    """The scalars of an event file by tag: length, checksum, event, checksum, over and over."""
    from tensorboardX.proto.event_pb2 import Event as Record

    found: dict[str, list[tuple[int, float]]] = {}
    at = 0
    while at < len(records):
        (size,) = struct.unpack_from("<Q", records, at)
        record = Record.FromString(records[at + 12 : at + 12 + size])
        for value in record.summary.value:
            found.setdefault(value.tag, []).append((record.step, value.simple_value))
        at += 16 + size
    return found
