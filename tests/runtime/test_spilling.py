"""A pool with a disk tier: graphs that run ahead of their memory, and compute the same."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import VOCABULARY
from fakes_faulty import faulty_graph
from fakes_slow import SlowInline, SlowModel
from running import run_graph

from flowengine import Graph
from flowengine.operators.packing import CostPacker
from flowengine.runtime import Runtime, execute


def build(*, disk: int, **settings: Any) -> Graph:
    """An objective so slow that the encoder runs ahead of it, with room for two or three packs."""
    model = SlowModel(vocabulary=VOCABULARY, width=12, depth=1, heads=2, groups=1)
    packer = CostPacker(max_tokens=32)
    graph = faulty_graph(model=model, packer=packer, samples=60, capacity="48 KiB", **settings)
    graph.joins[0].disk = disk
    return graph


@pytest.mark.slow
@pytest.mark.parametrize("setting", [{}, {"staleness": 2}, {"freeze": True}], ids=str)
@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_what_is_spilled_is_trained_the_same(
    runtime: Runtime, setting: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more in flight than memory holds entries go to disk and come back: the losses and the
    weights are those without a disk, bit for bit, memory stays within its capacity, and no file
    is left."""
    monkeypatch.setattr(sys.modules[execute.__module__], "InlineRun", SlowInline)
    plain = run_graph(build(disk=0, **setting), tmp_path / "plain", runtime=runtime)
    spilled = run_graph(build(disk=2**20, **setting), tmp_path / "disk", runtime=runtime)
    tiers = [row["tier"] for row in spilled.rows("encoder")]
    assert "disk" not in [row["tier"] for row in plain.rows("encoder")]
    assert {"disk", "host"} <= set(tiers)
    assert spilled.losses == plain.losses
    for stage, weights in plain.weights.items():
        for name, tensor in weights.items():
            assert torch.equal(spilled.weights[stage][name], tensor)
    assert spilled.done is not None
    pool = spilled.done.status.pool
    assert 0 < pool.peak_bytes <= pool.capacity_bytes
    assert pool.used_bytes == 0
    assert sorted(os.listdir(tmp_path / "disk")) == sorted(os.listdir(tmp_path / "plain"))
