"""Events as JSON objects, one line each: what metrics.jsonl and `--json` hold.

    {"event": "run_started", "graph", "runtime", "run_dir", "steps", "stages"}
    {"event": "step", ...}          the fields of StepDone; in metrics.jsonl also "rates":
                                    those of flowengine.observe.rates.Rates
    {"event": "report", ...}        the fields of Reported; evaluations come this way
    {"event": "checkpoint", "step", "wall_s", "path"}
    {"event": "restarted", "step", "wall_s", "restarts", "reason"}     later lines hold again what
                                                                     follows that step
    {"event": "left_out", "sample", "wall_s", "stage", "reason"}
    {"event": "cost_fitted", ...}   the fields of CostFitted
    {"event": "cost_drifted", "step", "wall_s", "error"}
    {"event": "run_failed", "wall_s", "error"}

JSON has no NaN: a number that is not finite becomes null, and the object says so under
"non_finite", by path: {"loss": null, "non_finite": {"loss": "nan"}}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flowengine.runtime.events import (
    CheckpointDone,
    CostDrifted,
    CostFitted,
    Event,
    LeftOut,
    Reported,
    Restarted,
    RunFailed,
    RunStarted,
    StepDone,
)

EVENT_NAMES: dict[type[Any], str] = {
    RunStarted: "run_started",
    StepDone: "step",
    Reported: "report",
    CheckpointDone: "checkpoint",
    Restarted: "restarted",
    LeftOut: "left_out",
    CostFitted: "cost_fitted",
    CostDrifted: "cost_drifted",
    RunFailed: "run_failed",
}
"""The events that are kept, by their names in JSON."""


def event_json(event: Event, *, more: Mapping[str, Any] = MappingProxyType({})) -> str | None:
    """The event, and what `more` is known of it, as one line of JSON without its newline; None for
    events that are not kept."""
    name = EVENT_NAMES.get(type(event))
    if name is None:
        return None
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return dump_json({"event": name, **values, **more})


def parse_event(record: Mapping[str, Any]) -> Event | None:
    """The event of such a line, read back; None for what is no event of these kinds. Numbers that
    were not finite are so again where they are fields of their own."""
    kind = next((kind for kind, name in EVENT_NAMES.items() if name == record.get("event")), None)
    if kind is None:
        return None
    lost = record.get("non_finite", {})
    values = {f.name: record[f.name] for f in fields(kind) if f.name in record}
    values |= {name: float(text) for name, text in lost.items() if name in values}
    values |= {name: Path(values[name]) for name in ("run_dir", "path") if name in values}
    if kind is RunStarted:
        values["stages"] = tuple(values["stages"])
    event: Event = kind(**values)
    return event


def dump_json(record: Mapping[str, Any], *, indent: int | None = None) -> str:
    """The record as JSON that every reader takes: no NaN, only JSON's own types."""
    found: dict[str, str] = {}
    plain = _plain(record, "", found)
    if found:
        plain["non_finite"] = found
    return json.dumps(plain, allow_nan=False, indent=indent)


def _plain(value: Any, path: str, found: dict[str, str]) -> Any:
    """The value in JSON's types; `found` collects the places of numbers that are not finite."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, _join(path, key), found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, _join(path, index), found) for index, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), path, found)
    if not isinstance(value, float):
        return repr(value)
    if math.isfinite(value):
        return float(value)
    found[path] = str(float(value))
    return None


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
