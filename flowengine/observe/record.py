"""The run directory: what stays of a run.

    metrics.jsonl        one line per step and per report of an operator, flushed as it happens
                         (flowengine.observe.event_json)
    catalogue.parquet    one row per entry of the pool, freed or used up (flowengine.pool.catalogue)
    report.json          the summary (flowengine.observe.report); written whole or not at all
    weights/             one safetensors file per trained stage; written by the runtime

All but the weights are there after a run that failed as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import pyarrow.parquet as pq

from flowengine.checkpoint.disk import write_synced
from flowengine.graph import Graph
from flowengine.observe.event_json import dump_json, event_json
from flowengine.observe.report import describe_config, make_report
from flowengine.observe.tally import Tally
from flowengine.pool.catalogue import SCHEMA, catalogue_table
from flowengine.runtime.events import CatalogueRows, Event, RunDone, RunFailed

ROWS_PER_GROUP = 16384
"""Rows gathered before they are written: small row groups make large files that read slowly."""


class Recorder:
    """An observer that writes the files of `run_dir` (which exists) and leaves the report.

    `report` is None until the run is over. Use it as a context manager, or call `close`: whatever
    ended the run, the files are complete afterwards.
    """

    def __init__(self, graph: Graph, *, run_dir: Path, command: Sequence[str]) -> None:
        self.report: dict[str, Any] | None = None
        self._graph = graph
        self._run_dir = run_dir
        self._config = describe_config(graph, command=command)
        self._tally = Tally()
        self._metrics: TextIO | None = (run_dir / "metrics.jsonl").open("w", encoding="utf-8")
        self._catalogue = _Catalogue(run_dir / "catalogue.parquet")

    def __call__(self, event: Event) -> None:
        self._tally.add(event)
        line = event_json(event)
        if line is not None and self._metrics is not None:
            self._metrics.write(line + "\n")
            self._metrics.flush()
        match event:
            case CatalogueRows():
                self._catalogue.write(event.columns)
            case RunDone() | RunFailed():
                self.close()

    def close(self, *, error: str = "ended before its last step") -> None:
        """Completes the files; `error` is what the report says if the run did not end itself."""
        if self._metrics is None:
            return
        self._metrics.close()
        self._metrics = None
        self._catalogue.close()
        if self._tally.done is None and self._tally.error is None:
            self._tally.error = error
        self.report = make_report(
            self._tally, graph=self._graph, config=self._config, run_dir=self._run_dir
        )
        write_synced(self._run_dir / "report.json", dump_json(self.report, indent=2) + "\n")

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        if kind is not None:
            self.close(error=f"{kind.__name__}: {error}".removesuffix(": "))
        self.close()


class _Catalogue:
    """The Parquet file, written a row group at a time."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self._columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}

    def write(self, columns: Mapping[str, list[Any]]) -> None:
        for name, gathered in self._columns.items():
            gathered.extend(columns[name])
        if len(self._columns["sample"]) >= ROWS_PER_GROUP:
            self._write_group()

    def close(self) -> None:
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        if self._columns["sample"]:
            self._writer.write_table(catalogue_table(self._columns))
        self._columns = {name: [] for name in SCHEMA.names}
