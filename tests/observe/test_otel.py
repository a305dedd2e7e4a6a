"""OpenTelemetry: what a collector on loopback gets, and that a dead one holds up nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_exporters import EVENTS

from flowengine.cli.main import main
from flowengine.errors import FlowError
from flowengine.observe.otel import OpenTelemetry, wanted_signals
from flowengine.runtime.events import (
    CheckpointDone,
    Event,
    LeftOut,
    PoolStatus,
    Restarted,
    RunDone,
    RunFailed,
    Status,
)

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
GRAPH = """
import sys
sys.path.insert(0, {tests!r})
from fakes import small_graph
def build():
    return small_graph(steps=2)
"""


class Collector(BaseHTTPRequestHandler):
    """Keeps the bodies that are posted, by path."""

    bodies: dict[str, list[bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[bytes]]]:
    """What a collector on loopback gets, which the environment names."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra 'otel' is not installed")
    bodies: dict[str, list[bytes]] = {}
    handler = type("Handler", (Collector,), {"bodies": bodies})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield bodies
    server.shutdown()
    server.server_close()
    thread.join()


def metrics_of(bodies: dict[str, list[bytes]]) -> dict[str, dict[tuple[str, ...], float]]:
    """The last value of every metric by its attributes' values."""
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

    found: dict[str, dict[tuple[str, ...], float]] = {}
    for body in bodies["/v1/metrics"]:
        request: Any = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
        for resource in request.resource_metrics:
            for metric in resource.scope_metrics[0].metrics:
                data = getattr(metric, metric.WhichOneof("data"))
                for point in data.data_points:
                    labels = tuple(a.value.string_value for a in point.attributes)
                    value = getattr(point, point.WhichOneof("value"))
                    found.setdefault(metric.name, {})[labels] = value
    return found


def spans_of(bodies: dict[str, list[bytes]]) -> tuple[str, list[Any]]:
    """The service's name, and all spans."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    found, name = [], ""
    for body in bodies["/v1/traces"]:
        request: Any = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            name = attributes["service.name"]
            found += resource.scope_spans[0].spans
    return name, found


def export(events: list[Event]) -> OpenTelemetry:
    exporter = OpenTelemetry(wanted_signals())
    for event in events:
        exporter(event)
    exporter.close()
    return exporter


def test_metrics(collected: dict[str, list[bytes]]) -> None:
    """The collector has totals, the last step, the stages, pool and channels."""
    assert export(EVENTS).trouble is None
    found = metrics_of(collected)
    assert found["flowengine.steps"] == {(): 2}
    assert found["flowengine.samples"] == {(): 16}
    assert found["flowengine.loss"] == {(): 0.25}
    assert found["flowengine.staleness_steps"] == {("eye",): 2}
    assert found["flowengine.pool_bytes"] == {(): 10}
    assert found["flowengine.stage_seconds"]["eye", "1", "busy"] == 1.5
    assert found["flowengine.channel_rows"] == {("pages", "eye[1]", "sample"): 3}


def test_spans(collected: dict[str, list[bytes]]) -> None:
    """A run is a span with its steps below it, at their times, and what else happens on it."""
    rest: list[Event] = [
        CheckpointDone(2, 2.5, Path("x")),
        Restarted(1, 3.0, 1, "killed"),
        LeftOut(7, 3.5, "eye", "too long"),
        RunDone(4.0, 0.5, Status(4.0, (), PoolStatus(0, 0, 1)), {}),
    ]
    export([*EVENTS, *rest])
    service, spans = spans_of(collected)
    (run,) = (span for span in spans if span.name == "run")
    steps = [span for span in spans if span.name == "step"]
    assert service == "flowengine"
    assert {span.parent_span_id for span in steps} == {run.span_id}
    assert run.end_time_unix_nano - run.start_time_unix_nano == 4_000_000_000
    assert [step.start_time_unix_nano - run.start_time_unix_nano for step in steps] == [0, 10**9]
    assert [event.name for event in run.events] == ["report", "checkpoint", "restarted", "left_out"]
    assert run.status.code == 0


def test_a_run_that_fails(collected: dict[str, list[bytes]]) -> None:
    """The run's span of a failure has its error; of a run that just ends, too."""
    export([*EVENTS, RunFailed(3.0, "StageError: eye")])
    export(EVENTS)
    _, spans = spans_of(collected)
    statuses = [span.status for span in spans if span.name == "run"]
    assert [(s.code, s.message) for s in statuses] == [(2, "StageError: eye"), (2, "ended early")]


@pytest.mark.slow
def test_from_the_command_line(collected: dict[str, list[bytes]], tmp_path: Path) -> None:
    """With the endpoint in the environment a run exports, without an option of its own."""
    graph = tmp_path / "graph.py"
    graph.write_text(GRAPH.format(tests=str(Path(__file__).parents[1])))
    command = ["run", str(graph), "--runtime", "inline", "--run-dir", str(tmp_path / "run")]
    result = CliRunner().invoke(main, [*command, "--quiet"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert metrics_of(collected)["flowengine.steps"] == {(): 2}
    assert len(spans_of(collected)[1]) == 3
    assert not [t for t in threading.enumerate() if "Otel" in t.name]


def test_a_dead_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody listens the run is not held up, and it is told once."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra 'otel' is not installed")
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setattr("flowengine.observe.otel.CLOSE_S", 0.2)
    began = time.monotonic()
    assert export(EVENTS).trouble is not None
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, []),
        ({ENDPOINT: "http://x"}, ["METRICS", "TRACES"]),
        ({ENDPOINT: "http://x", "OTEL_SDK_DISABLED": "True"}, []),
        ({ENDPOINT: "http://x", "OTEL_TRACES_EXPORTER": "none"}, ["METRICS"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, ["TRACES"]),
        ({"OTEL_METRICS_EXPORTER": "console"}, ["METRICS"]),
    ],
)
def test_what_is_wanted(
    environment: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is exported that the environment does not ask for."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wanted_signals() == expected


def test_an_exporter_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name that was asked for is told, with those that are there."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra 'otel' is not installed")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "carrier-pigeon")
    with pytest.raises(FlowError, match="no exporter 'carrier-pigeon' is installed; expected one"):
        OpenTelemetry(["METRICS"])
