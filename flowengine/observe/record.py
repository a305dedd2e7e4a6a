"""The run directory: what stays of a run.

    metrics.jsonl        one line per step and per report of an operator, flushed as it happens
                         (flowengine.observe.event_json)
    catalogue.parquet    one row per entry of the pool, freed or used up (flowengine.pool.catalogue)
    spans.parquet        what every stage replica did when (flowengine.observe.tables)
    packs.parquet        every pack as planned
    dead_letters.parquet the samples that were left out, and why
    occupancy.parquet    how full the pool and the channels were
    run.json             what was asked for, and the graph as drawn; written before the run
    status.json          the last look at the stages (flowengine.observe.status_file)
    report.json          the summary (flowengine.observe.report); written whole or not at all
    weights/             one safetensors file per trained stage; written by the runtime

All but the weights are there after a run that failed as well. docs/run-directory.md describes
every file and column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from flowengine.checkpoint.disk import write_synced
from flowengine.graph import Graph
from flowengine.observe.event_json import dump_json, event_json
from flowengine.observe.rates import Peak, RateMeter
from flowengine.observe.report import describe_config, make_report
from flowengine.observe.sketch import sketch_graph
from flowengine.observe.status_file import StatusFile
from flowengine.observe.tables import DEAD_LETTERS, OCCUPANCY, PACKS, SPANS, TableFile
from flowengine.observe.tally import Tally
from flowengine.pool.catalogue import SCHEMA
from flowengine.runtime.events import (
    CatalogueRows,
    Event,
    PackRows,
    RunDone,
    RunFailed,
    SpanRows,
    Status,
)
from flowengine.runtime.stall import find_dependencies


class Recorder:
    """An observer that writes the files of `run_dir` (which exists) and leaves the report.

    `report` is None until the run is over. Use it as a context manager, or call `close`: whatever
    ended the run, the files are complete afterwards.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        run_dir: Path,
        command: Sequence[str],
        peak: Peak | None = None,
        predicted: Mapping[str, Any] | None = None,
    ) -> None:
        """predicted: what the plan expects that the run follows; the report holds it against it."""
        self.report: dict[str, Any] | None = None
        self._predicted = predicted
        self._graph = graph
        self._run_dir = run_dir
        self._config = describe_config(graph, command=command)
        self._tally = Tally()
        self._peak, self._meter = peak, RateMeter(peak)
        self._metrics: TextIO | None = (run_dir / "metrics.jsonl").open("w", encoding="utf-8")
        self._catalogue = TableFile(run_dir / "catalogue.parquet", SCHEMA)
        self._spans = TableFile(run_dir / "spans.parquet", SPANS)
        self._packs = TableFile(run_dir / "packs.parquet", PACKS)
        self._occupancy = TableFile(run_dir / "occupancy.parquet", OCCUPANCY)
        self._status = StatusFile(run_dir)
        described = {
            "config": self._config,
            "sketch": sketch_graph(graph).to_json(),
            "dependencies": asdict(find_dependencies(graph)),
        }
        write_synced(run_dir / "run.json", dump_json(described, indent=2) + "\n")

    def __call__(self, event: Event) -> None:
        self._tally.add(event)
        rates = self._meter.add(event)
        line = event_json(event, more={} if rates is None else {"rates": asdict(rates)})
        if line is not None and self._metrics is not None:
            self._metrics.write(line + "\n")
            self._metrics.flush()
        match event:
            case CatalogueRows():
                self._catalogue.write(event.columns)
            case SpanRows():
                count = len(event.columns["state"])
                owner: dict[str, list[Any]] = {
                    "stage": [event.stage] * count,
                    "replica": [event.replica] * count,
                }
                self._spans.write({**owner, **event.columns})
            case PackRows():
                self._packs.write(event.columns)
            case Status():
                self._occupancy.write(occupancy_columns(event))
                self._status.write(event)
            case RunDone():
                self._occupancy.write(occupancy_columns(event.status))
                self.close()
            case RunFailed():
                self.close()

    def close(self, *, error: str = "ended before its last step") -> None:
        """Completes the files; `error` is what the report says if the run did not end itself."""
        if self._metrics is None:
            return
        self._metrics.close()
        self._metrics = None
        self._write_dead_letters()
        for table in (self._catalogue, self._spans, self._packs, self._occupancy):
            table.close()
        if self._tally.done is None and self._tally.error is None:
            self._tally.error = error
        self.report = make_report(
            self._tally,
            graph=self._graph,
            config=self._config,
            run_dir=self._run_dir,
            peak=self._peak,
            predicted=self._predicted,
        )
        write_synced(self._run_dir / "report.json", dump_json(self.report, indent=2) + "\n")

    def _write_dead_letters(self) -> None:
        letters = list(self._tally.dead_letters.values())
        table = TableFile(self._run_dir / "dead_letters.parquet", DEAD_LETTERS)
        table.write(
            {name: [getattr(letter, name) for letter in letters] for name in DEAD_LETTERS.names}
        )
        table.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        if kind is not None:
            self.close(error=f"{kind.__name__}: {error}".removesuffix(": "))
        self.close()


def occupancy_columns(status: Status) -> dict[str, list[Any]]:
    """Rows of occupancy.parquet: one per tier of the pool, and one per channel."""
    channels = status.channels
    tiers = [("pool", status.pool.used_bytes, status.pool.capacity_bytes)]
    if status.pool.disk_capacity_bytes:
        tiers.append(("disk", status.pool.disk_bytes, status.pool.disk_capacity_bytes))
    unknown = [None] * len(tiers)
    return {
        "wall_s": [status.wall_s] * (len(tiers) + len(channels)),
        "kind": ["pool"] * len(tiers) + ["channel"] * len(channels),
        "name": [t[0] for t in tiers] + [f"{c.producer}>{c.consumer}:{c.port}" for c in channels],
        "items": [*unknown, *(channel.items for channel in channels)],
        "bound_items": [*unknown, *(channel.bound_items for channel in channels)],
        "num_bytes": [t[1] for t in tiers] + [channel.num_bytes for channel in channels],
        "bound_bytes": [t[2] for t in tiers] + [channel.bound_bytes for channel in channels],
    }
