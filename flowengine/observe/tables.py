"""The Parquet files of a run directory besides the catalogue: spans, packs and occupancy.

Times are seconds since the run started. `field.metadata` documents the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_GROUP = 16384
"""Rows gathered before they are written: small row groups make large files that read slowly."""


def _field(name: str, kind: pa.DataType, doc: str) -> pa.Field:
    return pa.field(name, kind, metadata={"doc": doc})


SPANS = pa.schema(
    [
        _field("stage", pa.string(), "the stage"),
        _field("replica", pa.int32(), "which of its replicas"),
        _field("state", pa.string(), "busy, blocked or starved"),
        _field("what", pa.string(), "the work, if busy (read, forward, ...); else the cause"),
        _field("step", pa.int64(), "training step; steps done, if held out"),
        _field("held_out", pa.bool_(), "whether an evaluation's"),
        _field("pack", pa.int32(), "index of its pack within the step; -1 for none"),
        _field("began_s", pa.float64(), "seconds since the run started"),
        _field("ended_s", pa.float64(), "seconds since the run started"),
    ]
)
"""spans.parquet: what every stage replica did when (flowengine.runtime.spans says what is kept)."""

PACKS = pa.schema(
    [
        _field("step", pa.int64(), "training step; steps done, if held out"),
        _field("held_out", pa.bool_(), "whether an evaluation's"),
        _field("pack", pa.int32(), "index within the step"),
        _field("samples", pa.int32(), "samples in it"),
        _field("tokens", pa.int64(), "tokens in it, media placeholders included"),
        _field("targets", pa.int64(), "tokens with a label"),
        _field("room_tokens", pa.int64(), "tokens it could hold"),
        _field("cost", pa.float64(), "what the packer takes it to cost, in the packer's unit"),
        _field("sample_ids", pa.list_(pa.int64()), "its samples, in the pack's order"),
    ]
)
"""packs.parquet: every pack as it was planned."""

DEAD_LETTERS = pa.schema(
    [
        _field("sample", pa.int64(), "sample id; held-out ones are negative"),
        _field("stage", pa.string(), "the stage that could not take it"),
        _field("reason", pa.string(), "what the stage said of it"),
        _field("wall_s", pa.float64(), "when it was left out, in seconds since the run started"),
    ]
)
"""dead_letters.parquet: the samples that were left out, one row each."""

OCCUPANCY = pa.schema(
    [
        _field("wall_s", pa.float64(), "seconds since the run started"),
        _field("kind", pa.string(), "pool or channel"),
        _field("name", pa.string(), "producer>consumer:port, or the pool's tier: pool, disk"),
        _field("items", pa.int64(), "rows on the channel; null for the pool"),
        _field("bound_items", pa.int64(), "the most rows; null for the pool"),
        _field("num_bytes", pa.int64(), "bytes in the pool, or of rows on the channel"),
        _field("bound_bytes", pa.int64(), "the most bytes"),
    ]
)
"""occupancy.parquet: how full the pool and the channels were, as looked at a few times a second."""


class TableFile:
    """A Parquet file that is written a row group at a time; the rows in between are in memory."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")
        self._columns: dict[str, list[Any]] = {name: [] for name in schema.names}

    def write(self, columns: Mapping[str, list[Any]]) -> None:
        """Adds these rows; every column of the schema must be there."""
        for name, gathered in self._columns.items():
            gathered.extend(columns[name])
        if len(self._columns[self._schema.names[0]]) >= ROWS_PER_GROUP:
            self._write_group()

    def close(self) -> None:
        """Completes the file."""
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        if self._columns[self._schema.names[0]]:
            self._writer.write_table(pa.Table.from_pydict(self._columns, schema=self._schema))
        self._columns = {name: [] for name in self._schema.names}
