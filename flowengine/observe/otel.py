"""A run for OpenTelemetry (https://opentelemetry.io): its numbers as metrics, and the run and its
steps as spans.

Whether, where and how is said by the environment's standard variables, OTEL_EXPORTER_OTLP_ENDPOINT
and its kin (OpenTelemetry specification, "Environment Variable Specification"); nothing is sent
without them. Needs opentelemetry-sdk and an exporter (the extra `otel`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any, Literal

from flowengine.errors import FlowError
from flowengine.observe.readings import METRICS, Readings
from flowengine.runtime.events import (
    CheckpointDone,
    Event,
    LeftOut,
    Reported,
    Restarted,
    RunDone,
    RunFailed,
    RunStarted,
    StepDone,
)

CLOSE_S = 5.0
"""For what is left to export at the end; a collector that is gone does not hold up more."""

NAME = "flowengine"
Signal = Literal["METRICS", "TRACES"]
_GROUPS = {"METRICS": "opentelemetry_metrics_exporter", "TRACES": "opentelemetry_traces_exporter"}


def wanted_signals() -> list[Signal]:
    """The signals that the environment asks for: none without an endpoint or an exporter."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return []
    return [signal for signal in ("METRICS", "TRACES") if _is_wanted(signal)]


def _is_wanted(signal: Signal) -> bool:
    exporter = os.environ.get(f"OTEL_{signal}_EXPORTER", "")
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    asked = exporter or any(os.environ.get(name) for name in endpoints)
    return bool(asked) and exporter != "none"


class OpenTelemetry:
    """An observer that exports `signals`; `close` exports what is left.

    FlowError where the libraries are missing, or have no exporter of the name that was asked for.
    `trouble` is what an exporter complained of last, None if of nothing.
    """

    def __init__(self, signals: Iterable[Signal]) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise FlowError(
                "OTEL_ variables are set, but OpenTelemetry is not installed; run: "
                "pip install 'flowengine[otel]'"
            ) from None
        self._complaints = _Complaints()
        resource = Resource.create({} if _has_service_name() else {"service.name": NAME})
        self._observers: list[Callable[[Event], None]] = []
        self._closers: list[Callable[[], object]] = []
        for signal in signals:
            exporter = _find_exporter(signal)()
            if signal == "METRICS":
                self._add_metrics(exporter, resource)
            else:
                self._add_traces(exporter, resource)

    @property
    def trouble(self) -> str | None:
        return self._complaints.last

    def __call__(self, event: Event) -> None:
        for observe in self._observers:
            observe(event)

    def close(self) -> None:
        """Exports what is left, and ends the exporters' threads, for as long as CLOSE_S."""
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        self._complaints.close()

    def _close(self) -> None:
        for close in self._closers:
            close()

    def _add_metrics(self, exporter: Any, resource: Any) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        reader = PeriodicExportingMetricReader(exporter)
        provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        readings = Readings()
        _add_instruments(provider.get_meter(NAME), readings)
        self._observers.append(readings)
        self._closers.append(provider.shutdown)

    def _add_traces(self, exporter: Any, resource: Any) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        spans = _Spans(provider.get_tracer(NAME))
        self._observers.append(spans)
        self._closers += [spans.close, provider.shutdown]


def _has_service_name() -> bool:
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )


def _find_exporter(signal: Signal) -> Callable[[], Any]:
    """The exporter that OTEL_<signal>_EXPORTER names, OTLP by default."""
    name = os.environ.get(f"OTEL_{signal}_EXPORTER") or "otlp"
    if name == "otlp":
        variables = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next((os.environ[v] for v in variables if os.environ.get(v)), "http/protobuf")
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    found = {entry.name: entry for entry in entry_points(group=_GROUPS[signal])}
    if name not in found:
        raise FlowError(
            f"OTEL_{signal}_EXPORTER: no exporter '{name}' is installed; expected one of "
            f"{', '.join(sorted(found)) or 'none'}; pip install 'flowengine[otel]' brings "
            "otlp_proto_http"
        )
    exporter: Callable[[], Any] = found[name].load()
    return exporter


def _add_instruments(meter: Any, readings: Readings) -> None:
    """An observable instrument per metric, named flowengine.<name>, read when it is exported."""
    from opentelemetry.metrics import CallbackOptions, Observation

    def reader(name: str, labels: tuple[str, ...]) -> Callable[[CallbackOptions], Iterator[Any]]:
        def read(_: CallbackOptions) -> Iterator[Any]:
            for values, value in readings.read(name):
                yield Observation(value, dict(zip(labels, values, strict=True)))

        return read

    for name, metric in METRICS.items():
        counts = metric.kind == "counter"
        make = meter.create_observable_counter if counts else meter.create_observable_gauge
        callbacks = [reader(name, metric.labels)]
        public = f"{NAME}.{name.removesuffix('_total')}"
        make(public, callbacks, unit=metric.unit, description=metric.text)


class _Spans:
    """One span for the run, and one below it for every step; what else happens are its events."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._run: Any = None
        self._began_ns = 0
        self._step_s = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case StepDone():
                self._add_step(event)
            case Reported() if isinstance(event.value, int | float | str):
                where = {"stage": event.stage, "step": event.step}
                self._note("report", event.wall_s, {**where, event.name: event.value})
            case CheckpointDone():
                self._note("checkpoint", event.wall_s, {"step": event.step})
            case Restarted():
                self._step_s = event.wall_s
                told = {"step": event.step, "reason": event.reason}
                self._note("restarted", event.wall_s, told)
            case LeftOut():
                told = {"sample": event.sample, "stage": event.stage, "reason": event.reason}
                self._note("left_out", event.wall_s, told)
            case RunFailed():
                self._end(event.wall_s, error=event.error)
            case RunDone():
                self._end(event.wall_s)

    def close(self) -> None:
        """Ends the run's span where nothing else has."""
        if self._run is not None:
            self._end((time.time_ns() - self._began_ns) / 1e9, error="ended early")

    def _start(self, event: RunStarted) -> None:
        self._began_ns = time.time_ns()
        told = {"graph": event.graph, "runtime": event.runtime, "run_dir": str(event.run_dir)}
        self._run = self._tracer.start_span("run", attributes=told, start_time=self._began_ns)

    def _add_step(self, step: StepDone) -> None:
        from opentelemetry.trace import set_span_in_context

        told = {"step": step.step, "loss": step.loss, "samples": step.samples}
        span = self._tracer.start_span(
            "step",
            context=set_span_in_context(self._run),
            attributes={**told, "tokens": step.tokens, "packs": step.packs},
            start_time=self._ns(self._step_s),
        )
        self._step_s = step.wall_s
        span.end(self._ns(step.wall_s))

    def _note(self, name: str, wall_s: float, attributes: dict[str, Any]) -> None:
        self._run.add_event(name, attributes, timestamp=self._ns(wall_s))

    def _end(self, wall_s: float, *, error: str | None = None) -> None:
        from opentelemetry.trace import Status, StatusCode

        if error is not None:
            self._run.set_status(Status(StatusCode.ERROR, error))
        self._run.end(self._ns(wall_s))
        self._run = None

    def _ns(self, wall_s: float) -> int:
        return self._began_ns + int(wall_s * 1e9)


class _Complaints(logging.Handler):
    """Keeps what OpenTelemetry logs off the terminal; the last of it is told at the end."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last: str | None = None
        self._logger = logging.getLogger("opentelemetry")
        self._propagated = self._logger.propagate
        self._logger.propagate = False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()

    def close(self) -> None:
        """Leaves the logger as it was."""
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
        super().close()
