"""A run directory as read back: what `report`, `compare`, `trace`, `draw --run` and `top` see."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flowengine.errors import FlowError
from flowengine.observe.sketch import Sketch
from flowengine.observe.tables import OCCUPANCY, PACKS, SPANS


class RunFiles:
    """The files of one run. FlowError if `run_dir` is no run directory, or a file is not there yet.

    Tables that a run left unfinished, because it goes on or was killed, read as empty.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.described = self._read_json("run.json")
        self.config: dict[str, Any] = self.described["config"]

    @cached_property
    def report(self) -> dict[str, Any]:
        """report.json."""
        return self._read_json("report.json")

    @cached_property
    def sketch(self) -> Sketch:
        """The graph, as drawn."""
        return Sketch.from_json(self.described["sketch"])

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """The steps of metrics.jsonl, in order; those that a restart trained again, once."""
        found: list[dict[str, Any]] = []
        for line in self.metrics:
            if line["event"] == "step":
                found.append(line)
            elif line["event"] == "restarted":
                found = [step for step in found if step["step"] < line["step"]]
        return found

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last one that is cut short is left out."""
        path = self.run_dir / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    @cached_property
    def spans(self) -> pa.Table:
        """spans.parquet."""
        return self._read_table("spans.parquet", SPANS)

    @cached_property
    def restarts_s(self) -> list[float]:
        """When the run went back to a checkpoint, in seconds since it started."""
        return [line["wall_s"] for line in self.metrics if line["event"] == "restarted"]

    @cached_property
    def packs(self) -> pa.Table:
        """packs.parquet; the packs of a round that a restart planned again, once."""
        table = self._read_table("packs.parquet", PACKS)
        return _last_plans(table) if self.restarts_s else table

    @cached_property
    def occupancy(self) -> pa.Table:
        """occupancy.parquet."""
        return self._read_table("occupancy.parquet", OCCUPANCY)

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            text = (self.run_dir / name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise FlowError(
                f"{self.run_dir}: has no {name}; expected the directory of a run"
                + (" that is over" if name == "report.json" else ", such as runs/NAME-TIME")
            ) from None
        record: dict[str, Any] = json.loads(text)
        return record

    def attempt(self, wall_s: float) -> int:
        """How often the run had gone back to a checkpoint by then."""
        return sum(restart_s <= wall_s for restart_s in self.restarts_s)

    def _read_table(self, name: str, schema: pa.Schema) -> pa.Table:
        try:
            return pq.read_table(self.run_dir / name, schema=schema)
        except (FileNotFoundError, pa.ArrowInvalid):
            return schema.empty_table()


def _last_plans(packs: pa.Table) -> pa.Table:
    """Of rounds that were planned more than once, the last plan; it begins with pack 0."""
    rounds = zip(*(packs[name].to_pylist() for name in ("step", "held_out", "pack")), strict=True)
    plans: dict[tuple[int, bool], list[int]] = {}
    for row, (step, held_out, pack) in enumerate(rounds):
        if pack == 0:
            plans[step, held_out] = []
        plans[step, held_out].append(row)
    return packs.take([row for rows in plans.values() for row in rows])
