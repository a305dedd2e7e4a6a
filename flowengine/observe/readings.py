"""A run's numbers as others measure them: the newest value of every metric, by its labels.

Kept from events, and read from another thread at any time: by Prometheus, when it asks, and by
OpenTelemetry, when it exports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from flowengine.runtime.events import Event, Reported, RunStarted, Status, StepDone

_STAGE = ("stage",)
_ENDS = ("producer", "consumer", "port")


class Metric(NamedTuple):
    """text: what it is. labels: what its values are told apart by. unit: as UCUM writes it, "1" for
    counts and parts. kind: a counter only ever rises, but for a run that goes back."""

    text: str
    labels: tuple[str, ...] = ()
    unit: str = "1"
    kind: Literal["gauge", "counter"] = "gauge"


METRICS: dict[str, Metric] = {
    "steps_asked": Metric("training steps asked for, 0 where there is no end"),
    "steps_total": Metric("training steps done", kind="counter"),
    "samples_total": Metric("samples trained", kind="counter"),
    "tokens_total": Metric("tokens trained, media placeholders included", kind="counter"),
    "loss": Metric("mean loss over the last step's targets"),
    "pack_fill_ratio": Metric("tokens over room in the last step's packs"),
    "gradient_norm": Metric("before clipping, of the last step"),
    "learning_rate": Metric("of the last step, per trained stage", _STAGE),
    "staleness_steps": Metric("largest age of a feature in the last step", _STAGE),
    "result": Metric("the last number an operator reported", ("stage", "name")),
    "pool_bytes": Metric("payload bytes in the pool, in host memory", unit="By"),
    "pool_capacity_bytes": Metric("their bound", unit="By"),
    "pool_disk_bytes": Metric("payload bytes in the pool, on disk", unit="By"),
    "pool_disk_capacity_bytes": Metric("their bound", unit="By"),
    "stage_seconds_total": Metric("time by state", ("stage", "replica", "state"), "s", "counter"),
    "channel_rows": Metric("rows on a channel", _ENDS),
    "channel_bound_rows": Metric("their bound", _ENDS),
}
"""Every metric by its name."""


class Readings:
    """An observer that keeps the newest values."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        self._status: Status | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._set("steps_asked", event.steps or 0)
            case StepDone():
                self._on_step(event)
            case Reported() if isinstance(event.value, int | float):
                self._set("result", event.value, event.stage, event.name)
            case Status():
                self._status = event

    def read(self, name: str) -> list[tuple[tuple[str, ...], float]]:
        """The metric's values, by the values of its labels."""
        status = self._status
        if status is None or name in self._values:
            return list(self._values.get(name, {}).items())
        return [(labels, value) for other, labels, value in _of_status(status) if other == name]

    def _on_step(self, step: StepDone) -> None:
        for name in ("samples", "tokens"):
            before = self._values.get(f"{name}_total", {}).get((), 0)
            self._set(f"{name}_total", before + getattr(step, name))
        self._set("steps_total", step.step + 1)
        self._set("loss", step.loss)
        self._set("pack_fill_ratio", step.fill)
        if step.gradient_norm is not None:
            self._set("gradient_norm", step.gradient_norm)
        for stage, rate in step.lr.items():
            self._set("learning_rate", rate, stage)
        for stage, lag in step.staleness.items():
            self._set("staleness_steps", lag, stage)

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._values.setdefault(name, {})[labels] = value


def _of_status(status: Status) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """The metrics of a look at the stages: name, labels, value."""
    pool = status.pool
    yield "pool_bytes", (), pool.used_bytes
    yield "pool_capacity_bytes", (), pool.capacity_bytes
    if pool.disk_capacity_bytes:
        yield "pool_disk_bytes", (), pool.disk_bytes
        yield "pool_disk_capacity_bytes", (), pool.disk_capacity_bytes
    for stage in status.stages:
        for state in ("busy", "blocked", "starved"):
            labels = (stage.stage, str(stage.replica), state)
            yield "stage_seconds_total", labels, getattr(stage, f"{state}_s")
    for channel in status.channels:
        ends = (channel.producer, channel.consumer, channel.port)
        yield "channel_rows", ends, channel.items
        yield "channel_bound_rows", ends, channel.bound_items
