"""docs/run-directory.md describes what runs write, no more and no less."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowengine.observe.event_json import EVENT_NAMES
from flowengine.observe.status_file import StatusFile
from flowengine.runtime.events import ChannelStatus, PoolStatus, StageStatus, Status

TEXT = (Path(__file__).parents[2] / "docs" / "run-directory.md").read_text()


def section(name: str) -> str:
    return TEXT.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


def table(text: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def named(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_files(finished: Path) -> None:
    """Every file of a run is in the list, and those that every run leaves are there."""
    listed = {row[0].strip("`").rstrip("/") for row in table(TEXT.split("\n## ", 1)[0])}
    found = {path.name for path in finished.iterdir()}
    assert found - listed == set()
    optional = {"wandb", "tensorboard", "trace.json", "status.json", "checkpoints", "stall.txt"}
    assert listed - found <= optional | {"torch-profiler"}


@pytest.mark.parametrize("name", ["spans", "packs", "occupancy", "dead_letters", "catalogue"])
def test_columns(finished: Path, name: str) -> None:
    """The columns of every table are described in their order, with their types and a meaning."""
    schema: pa.Schema = pq.read_schema(finished / f"{name}.parquet")
    rows = table(section(f"{name}.parquet"))
    assert [(row[0].strip("`"), row[1]) for row in rows] == [(f.name, _type(f)) for f in schema]
    assert all(row[2].strip(" |") for row in rows)


def test_names_of_work(finished: Path) -> None:
    """Every kind of work in the spans is named."""
    spans = pq.read_table(finished / "spans.parquet").to_pylist()
    busy = {span["what"] for span in spans if span["state"] == "busy"}
    assert busy - named(section("spans.parquet")) == set()
    assert {span["state"] for span in spans} <= {"busy", "blocked", "starved"}


def test_metrics(finished: Path, failed: Path) -> None:
    """Every event and field of metrics.jsonl is described."""
    described = {row[0].strip("`"): named(row[1]) for row in table(section("metrics.jsonl"))}
    lines = [
        json.loads(line)
        for run_dir in (finished, failed)
        for line in (run_dir / "metrics.jsonl").read_text().splitlines()
    ]
    found = {line.pop("event"): set(line) for line in lines}
    assert found == {event: described[event] for event in found}
    known = {name: {field.name for field in fields(kind)} for kind, name in EVENT_NAMES.items()}
    assert described == {**known, "step": known["step"] | {"rates"}}


def test_run_and_status(finished: Path, tmp_path: Path) -> None:
    """Every field of run.json and status.json is described."""
    run = json.loads((finished / "run.json").read_text())
    assert set(run) - named(section("run.json")) == set()
    assert keys(run["sketch"]) - named(section("run.json")) == set()
    stages = (StageStatus("a", 0, "busy", "", 1.0, 1.0, 1.0),)
    channels = (ChannelStatus("a", "b", "c", 1, 2, 3, 4),)
    StatusFile(tmp_path).write(Status(1.0, stages, PoolStatus(1, 2, 3), channels))
    status = json.loads((tmp_path / "status.json").read_text())
    assert keys(status) - named(section("status.json")) == set()


def test_report_has_the_config_of_the_start(finished: Path) -> None:
    """What was asked for is the same in run.json and report.json, but for the start's time."""
    config = json.loads((finished / "run.json").read_text())["config"]
    report = json.loads((finished / "report.json").read_text())
    assert config.pop("created") == report["created"]
    assert config.items() <= report["config"].items()


def _type(field: pa.Field) -> str:
    """The type as shown; a list's items have another name in a file than in a schema."""
    return str(field.type).replace("element", "item")


def keys(record: Any) -> set[str]:
    """All keys, at any depth."""
    if isinstance(record, dict):
        return set(record) | {key for value in record.values() for key in keys(value)}
    if isinstance(record, list):
        return {key for value in record for key in keys(value)}
    return set()
