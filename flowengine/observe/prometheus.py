"""A run's numbers for Prometheus (https://prometheus.io), served over HTTP while it goes on.

Needs prometheus-client (the extra `metrics`). The endpoint listens on loopback unless told
otherwise; it has no access control.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowengine.errors import FlowError
from flowengine.runtime.events import Event, Reported, RunStarted, Status, StepDone

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Prometheus:
    """An observer that serves http://<host>:<port>/metrics; `close` ends it.

    port: 0 takes any free one; `port` says which. FlowError where it cannot be served.
    """

    def __init__(self, *, port: int, host: str = "127.0.0.1") -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise FlowError(
                "--prometheus needs prometheus-client; run: pip install 'flowengine[metrics]'"
            ) from None
        registry = CollectorRegistry()
        self._gauges = _make_gauges(registry)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise FlowError(f"--prometheus: cannot listen on {host}:{port}: {error}") from None
        self.port: int = self._server.server_port
        self.host = str(self._server.server_address[0])
        self._totals = {"samples": 0, "tokens": 0}

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._set("steps_asked", event.steps or 0)
            case StepDone():
                self._on_step(event)
            case Reported() if isinstance(event.value, int | float):
                self._set("result", event.value, event.stage, event.name)
            case Status():
                self._on_status(event)

    def close(self) -> None:
        """Ends the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _on_step(self, step: StepDone) -> None:
        for name in self._totals:
            self._totals[name] += getattr(step, name)
            self._set(f"{name}_total", self._totals[name])
        self._set("steps_total", step.step + 1)
        self._set("loss", step.loss)
        self._set("pack_fill_ratio", step.fill)
        if step.gradient_norm is not None:
            self._set("gradient_norm", step.gradient_norm)
        for stage, rate in step.lr.items():
            self._set("learning_rate", rate, stage)
        for stage, lag in step.staleness.items():
            self._set("staleness_steps", lag, stage)

    def _on_status(self, status: Status) -> None:
        self._set("pool_bytes", status.pool.used_bytes)
        self._set("pool_capacity_bytes", status.pool.capacity_bytes)
        for stage in status.stages:
            for state in ("busy", "blocked", "starved"):
                seconds = getattr(stage, f"{state}_s")
                self._set("stage_seconds_total", seconds, stage.stage, str(stage.replica), state)
        for channel in status.channels:
            ends = (channel.producer, channel.consumer, channel.port)
            self._set("channel_rows", channel.items, *ends)
            self._set("channel_bound_rows", channel.bound_items, *ends)

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._gauges[name](*labels).set(value)


_STAGE = ("stage",)
_ENDS = ("producer", "consumer", "port")
METRICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "steps_asked": ("training steps asked for, 0 where there is no end", ()),
    "steps_total": ("training steps done", ()),
    "samples_total": ("samples trained", ()),
    "tokens_total": ("tokens trained, media placeholders included", ()),
    "loss": ("mean loss over the last step's targets", ()),
    "pack_fill_ratio": ("tokens over room in the last step's packs", ()),
    "gradient_norm": ("before clipping, of the last step", ()),
    "learning_rate": ("of the last step, per trained stage", _STAGE),
    "staleness_steps": ("largest age of a feature in the last step", _STAGE),
    "result": ("the last number an operator reported", ("stage", "name")),
    "pool_bytes": ("payload bytes in the pool", ()),
    "pool_capacity_bytes": ("their bound", ()),
    "stage_seconds_total": ("time by state", ("stage", "replica", "state")),
    "channel_rows": ("rows on a channel", _ENDS),
    "channel_bound_rows": ("their bound", _ENDS),
}
"""Every metric, without its prefix flowengine_: what it is, and its labels."""


def _make_gauges(registry: CollectorRegistry) -> dict[str, Callable[..., Any]]:
    """Gauges, also for totals: they are counted elsewhere, and are set, not added to."""
    from prometheus_client import Gauge

    made: dict[str, Callable[..., Any]] = {}
    for name, (text, labels) in METRICS.items():
        gauge = Gauge(f"flowengine_{name}", text, labels, registry=registry)
        made[name] = gauge.labels if labels else _always(gauge)
    return made


def _always(gauge: Any) -> Callable[..., Any]:
    return lambda: gauge
