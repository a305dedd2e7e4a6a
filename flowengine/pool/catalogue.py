"""The catalogue: one Arrow row per entry of the pool, from its making to its release."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("sample", pa.int64(), metadata={"doc": "sample id; held-out ones are negative"}),
        pa.field("step", pa.int64(), metadata={"doc": "training step; steps done, if held out"}),
        pa.field("held_out", pa.bool_()),
        pa.field("pack", pa.int32(), metadata={"doc": "index of its pack within the step"}),
        pa.field("stage", pa.string(), metadata={"doc": "the stage that made it"}),
        pa.field("replica", pa.int32()),
        pa.field("dtype", pa.string()),
        pa.field("shape", pa.list_(pa.int64())),
        pa.field("size_bytes", pa.int64()),
        pa.field("address", pa.uint64(), metadata={"doc": "64-bit global virtual address"}),
        pa.field("tier", pa.string()),
        pa.field("version", pa.int64(), metadata={"doc": "optimizer steps of its maker's weights"}),
        pa.field("tokens", pa.int64(), metadata={"doc": "tokens of the sample"}),
        pa.field("made_s", pa.float64(), metadata={"doc": "seconds since the run started"}),
        pa.field("returned_s", pa.float64(), metadata={"doc": "last lease given back"}),
        pa.field("state", pa.string(), metadata={"doc": "how it ended: released or gradient"}),
    ]
)
"""Columns of the catalogue; `field.metadata` documents those that need it."""


def catalogue_table(columns: dict[str, list[Any]]) -> pa.Table:
    """The table of these columns; every column of SCHEMA must be there."""
    return pa.Table.from_pydict(columns, schema=SCHEMA)
