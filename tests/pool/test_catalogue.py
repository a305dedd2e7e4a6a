"""The catalogue's columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import small_graph
from running import run_graph

from flowengine.pool import Tier, make_address, owner_of
from flowengine.pool.catalogue import SCHEMA, catalogue_table

ROW: dict[str, Any] = {
    "sample": -3,
    "step": 2,
    "held_out": True,
    "pack": 1,
    "stage": "encoder",
    "replica": 1,
    "dtype": "bfloat16",
    "shape": [4, 12],
    "size_bytes": 96,
    "address": make_address(Tier.HOST, 2**20 - 1, 2**40 - 1),
    "tier": "host",
    "version": None,
    "tokens": 9,
    "made_s": 0.5,
    "returned_s": 0.75,
    "state": "released",
}


def test_a_row_comes_back_as_it_was() -> None:
    """Every column keeps its value: negative ids, 64-bit addresses, a missing version."""
    assert list(ROW) == SCHEMA.names
    table = catalogue_table({name: [value] for name, value in ROW.items()})
    assert table.schema == SCHEMA
    assert table.to_pylist() == [ROW]


def test_a_column_cannot_be_forgotten() -> None:
    """Columns that are not those of the schema are an error."""
    with pytest.raises(KeyError, match="address"):
        catalogue_table({name: [value] for name, value in ROW.items() if name != "address"})


def test_a_run_fills_every_column(tmp_path: Path) -> None:
    """What a run reports fits the schema: each feature once, in its encoder's part of the pool,
    with its times in order."""
    ran = run_graph(small_graph(steps=2, replicas=2, evaluate=4), tmp_path)
    rows = catalogue_table(ran.catalogue).to_pylist()
    samples = [row["sample"] for row in rows if row["stage"] == "encoder"]
    assert len(samples) == len(set(samples)) > 0
    for row in rows:
        assert owner_of(row["address"]) == 1 + row["replica"]
        assert 0 < row["made_s"] <= row["returned_s"]
        assert row["state"] == ("released" if row["held_out"] else "gradient")
        assert row["size_bytes"] == row["shape"][0] * 12 * 4
