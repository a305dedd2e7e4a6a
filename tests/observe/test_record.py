"""The run directory: metrics, catalogue and report, of runs that end well and of others."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes_described import Model, Score

from flowengine.api import AdamW, Pack, Source
from flowengine.graph import Graph, Step
from flowengine.observe import Recorder
from flowengine.pool.catalogue import SCHEMA
from flowengine.runtime.events import (
    CatalogueRows,
    Event,
    PoolStatus,
    Reported,
    RunDone,
    RunFailed,
    RunStarted,
    StageStatus,
    Status,
    StepDone,
)


class Packs(Source[Pack]):
    seed: int = 0

    def read(self, index: int) -> Pack:
        raise NotImplementedError


def watch(pack: Pack) -> None:
    raise NotImplementedError


def described() -> Graph:
    graph = Graph("toy", step=Step(samples=4), steps=3, seed=17)
    packs = graph.add(Packs(seed=5))
    model = graph.add(Model(), packs, optimizer=AdamW(lr=0.5), replicas=2)
    graph.add(Score(), model["answers"])
    graph.add(watch, packs)
    graph.evaluate(Packs(seed=6), through=packs, samples=2, every=1)
    return graph


def step(number: int, *, wall_s: float, loss: float = 1.0, staleness: int = 0) -> StepDone:
    return StepDone(
        step=number,
        wall_s=wall_s,
        loss=loss,
        samples=4,
        tokens=100,
        targets=10,
        packs=2,
        fill=0.5 + number / 4,
        gradient_norm=None,
        staleness={"eye": staleness, "ear": 0},
        lr={"model": 0.5},
    )


def status(wall_s: float) -> Status:
    replicas = tuple(
        StageStatus("model", replica, "busy", "", 3.0, 1.0, 0.5, {"blocked: room": 1.0})
        for replica in range(2)
    )
    return Status(wall_s, replicas, PoolStatus(10, 20, 30))


STARTED = RunStarted("toy", "inline", Path("somewhere"), 3, ("packs", "model", "score"))
DONE = RunDone(9.0, 1.0, status(9.0), {"model": "weights/model.safetensors"})


def record(tmp_path: Path, events: Sequence[Event]) -> dict[str, Any]:
    """The report on disk after these events."""
    with Recorder(described(), run_dir=tmp_path, command=["flowengine", "run"]) as recorder:
        for event in events:
            recorder(event)
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    assert recorder.report is not None
    assert recorder.report.keys() <= report.keys()
    return report


def rows(num_rows: int, start: int = 0) -> CatalogueRows:
    columns: dict[str, list[Any]] = {name: [0] * num_rows for name in SCHEMA.names}
    columns["sample"] = list(range(start, start + num_rows))
    columns["held_out"] = [False] * num_rows
    columns["shape"] = [[2, 3]] * num_rows
    for name in ("stage", "port", "dtype", "tier", "state"):
        columns[name] = ["x"] * num_rows
    return CatalogueRows(columns)


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def test_totals_and_rates(tmp_path: Path) -> None:
    """Totals are of all steps; rates leave out the first step, which holds the start."""
    report = record(
        tmp_path,
        [STARTED, step(0, wall_s=5.0), step(1, wall_s=6.0), step(2, wall_s=7.0, staleness=2), DONE],
    )
    assert (report["status"], report["error"]) == ("done", None)
    assert (report["steps"], report["samples"], report["tokens"]) == (3, 12, 300)
    assert (report["samples_per_s"], report["tokens_per_s"]) == (4.0, 100.0)
    assert (report["wall_s"], report["start_s"]) == (9.0, 1.0)
    assert report["losses"] == [1.0, 1.0, 1.0]
    assert report["staleness"] == [0, 0, 2]
    assert report["weights"] == {"model": "weights/model.safetensors"}
    assert report["pool"] == {
        "peak_bytes": 20,
        "capacity_bytes": 30,
        "disk_peak_bytes": 0,
        "disk_capacity_bytes": 0,
        "packs": 6,
        "mean_pack_fill": 0.75,
        "mean_padding": 0.25,
    }


def test_stage_times_are_summed_over_replicas(tmp_path: Path) -> None:
    """A stage's times are its replicas' together, and stand one by one beside them."""
    model = record(tmp_path, [STARTED, DONE])["stages"]["model"]
    assert (model["busy_s"], model["blocked_s"], model["starved_s"]) == (6.0, 2.0, 1.0)
    assert model["causes"] == {"blocked: room": 2.0}
    assert [replica["busy_s"] for replica in model["replicas"]] == [3.0, 3.0]


def test_configuration(tmp_path: Path) -> None:
    """The report says what was asked for, and where it ran."""
    config = record(tmp_path, [STARTED, DONE])["config"]
    assert (config["graph"], config["seed"], config["step_samples"]) == ("toy", 17, 4)
    assert (config["runtime"], config["command"]) == ("inline", ["flowengine", "run"])
    assert config["stages"]["packs"]["operator"] == "Packs(seed=5)"
    assert config["stages"]["model"]["replicas"] == 2
    assert "AdamW(lr=0.5" in config["stages"]["model"]["optimizer"]
    assert config["stages"]["watch"]["operator"] == "test_record.watch"
    assert config["environment"].keys() >= {"python", "torch", "platform", "cores", "threads"}


def test_results_and_evaluations(tmp_path: Path) -> None:
    """The last report of every stage stays; what readers of answers said stands per evaluation."""
    events: list[Event] = [
        STARTED,
        Reported("score", 1, 2.0, "accuracy", {"overall": 0.25}),
        Reported("watch", 1, 2.0, "seen", 4),
        Reported("score", 2, 3.0, "accuracy", {"overall": 0.5}),
        Reported("score", 2, 3.0, "asked", 8),
        DONE,
    ]
    results = record(tmp_path, events)["results"]
    assert results["score"] == {"accuracy": {"overall": 0.5}, "asked": 8}
    assert results["watch"] == {"seen": 4}
    assert [(e["step"], e["results"]["score"]) for e in results["evaluations"]] == [
        (1, {"accuracy": {"overall": 0.25}}),
        (2, {"accuracy": {"overall": 0.5}, "asked": 8}),
    ]


def test_metrics_are_there_as_they_happen(tmp_path: Path) -> None:
    """Every step and every report is one line of JSON, readable before the run ends."""
    with Recorder(described(), run_dir=tmp_path, command=[]) as recorder:
        recorder(STARTED)
        recorder(step(0, wall_s=1.0, loss=0.5))
        recorder(status(1.5))
        recorder(Reported("score", 1, 2.0, "accuracy", 0.25))
        found = lines(tmp_path)
    assert [line["event"] for line in found] == ["run_started", "step", "report"]
    assert found[1]["loss"] == 0.5
    assert found[2]["value"] == 0.25


@pytest.mark.parametrize(("loss", "text"), [(math.nan, "nan"), (-math.inf, "-inf")])
def test_numbers_that_are_not_finite(tmp_path: Path, loss: float, text: str) -> None:
    """A loss that is not finite is null in JSON, and named beside it."""
    report = record(tmp_path, [STARTED, step(0, wall_s=1.0, loss=loss), DONE])
    assert report["losses"] == [None]
    assert report["non_finite"] == {"losses.0": text}
    assert lines(tmp_path)[1]["loss"] is None
    assert lines(tmp_path)[1]["non_finite"] == {"loss": text}


@pytest.mark.parametrize("num_rows", [0, 1, 20_000])
def test_catalogue(tmp_path: Path, num_rows: int) -> None:
    """All rows are in the file, in order, with the catalogue's columns."""
    half = num_rows // 2
    record(tmp_path, [STARTED, rows(half), rows(num_rows - half, start=half), DONE])
    table = pq.read_table(tmp_path / "catalogue.parquet")
    assert table.schema.equals(SCHEMA)
    assert table["sample"].to_pylist() == list(range(num_rows))


def test_run_that_failed(tmp_path: Path) -> None:
    """After a failure the report has the error, and the files what happened before it."""
    failed = RunFailed(2.5, "StageError: no")
    report = record(tmp_path, [STARTED, step(0, wall_s=1.0), rows(3), status(2.0), failed])
    assert (report["status"], report["error"]) == ("failed", "StageError: no")
    assert (report["steps"], report["wall_s"], report["start_s"]) == (1, 2.5, None)
    assert report["stages"]["model"]["busy_s"] == 6.0
    assert pq.read_table(tmp_path / "catalogue.parquet").num_rows == 3


def test_run_that_was_interrupted(tmp_path: Path) -> None:
    """An exception that no event tells of is in the report, and is not swallowed."""

    def interrupted() -> None:
        with Recorder(described(), run_dir=tmp_path, command=[]) as recorder:
            recorder(STARTED)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["status"], report["error"]) == ("failed", "KeyboardInterrupt")


def test_close_twice(tmp_path: Path) -> None:
    """Closing again changes nothing, and no unfinished file is left."""
    recorder = Recorder(described(), run_dir=tmp_path, command=[])
    recorder(STARTED)
    recorder.close(error="first")
    recorder.close(error="second")
    assert recorder.report is not None
    assert recorder.report["error"] == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "catalogue.parquet",
        "dead_letters.parquet",
        "metrics.jsonl",
        "occupancy.parquet",
        "packs.parquet",
        "report.json",
        "run.json",
        "spans.parquet",
    ]
