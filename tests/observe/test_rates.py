"""Rates and the MFU: by hand, in the files of a run, and in Weights & Biases' own files."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import small_graph

from flowengine import run
from flowengine.observe.rates import Peak, RateMeter, measure_peak
from flowengine.runtime.events import Effort, Restarted, StepDone


def step(number: int, wall_s: float) -> StepDone:
    return StepDone(number, wall_s, 1.0, 8, 100, 40, 2, 0.75, None, {}, {})


def effort(stage: str, number: int, *, items: int = 0, flops: int = 0) -> Effort:
    return Effort(stage, 0, number, "image" if stage == "eye" else "", items, flops)


def test_rates_by_hand() -> None:
    """Operations over seconds over peak, each stage apart, replicas added up."""
    meter = RateMeter(Peak(1000.0, "stated"))
    assert meter.add(effort("eye", 0, items=3, flops=7)) is None
    first = meter.add(step(0, 1.0))
    assert first is not None
    assert first.tokens_per_s is None
    assert first.padding == 0.25
    for each in (effort("eye", 1, items=3, flops=300), effort("eye", 1, items=1, flops=100)):
        meter.add(each)
    meter.add(effort("model", 1, flops=1000))
    second = meter.add(step(1, 3.0))
    assert second is not None
    assert (second.tokens_per_s, second.samples_per_s) == (50, 4)
    assert second.media_per_s == {"image": 2}
    assert second.flops_per_s == {"eye": 200, "model": 500}
    assert second.mfu == {"eye": 0.2, "model": 0.5, "total": 0.7}
    meter.add(Restarted(1, 4.0, 1, ""))
    again = meter.add(step(1, 9.0))
    assert again is not None
    assert again.tokens_per_s is None


def test_a_run_reports_its_mfu(tmp_path: Path) -> None:
    """metrics.jsonl has every step's rates; the report's sums are theirs, and its shares add up."""
    peak = Peak(1e9, "stated")
    report = run(small_graph(steps=4), runtime="inline", run_dir=tmp_path / "run", peak=peak)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [each for each in map(json.loads, lines) if each["event"] == "step"]
    rates = [each["rates"] for each in steps]
    assert rates[0]["tokens_per_s"] is None
    assert rates[1]["mfu"].keys() == {"encoder", "model", "total"}
    mfu = report["mfu"]
    assert (mfu["peak_flops_per_s"], mfu["peak_origin"]) == (1e9, "stated")
    assert sum(stage["share"] for stage in mfu["stages"].values()) == pytest.approx(1)
    elapsed = steps[-1]["wall_s"] - steps[0]["wall_s"]
    for name, stage in mfu["stages"].items():
        assert stage["mfu"] == pytest.approx(stage["flops"] / elapsed / 1e9)
        spans = zip(steps, steps[1:], rates[1:], strict=False)
        by_step = [(b["wall_s"] - a["wall_s"]) * r["flops_per_s"][name] for a, b, r in spans]
        assert sum(by_step) == pytest.approx(stage["flops"])
    assert mfu["total"] == pytest.approx(sum(s["mfu"] for s in mfu["stages"].values()))
    assert report["media"]["image"]["items"] > 0
    assert report["media"]["image"]["per_s"] > 0
    assert report["pool"]["mean_padding"] == pytest.approx(1 - report["pool"]["mean_pack_fill"])


def test_without_a_peak_there_is_no_mfu(tmp_path: Path) -> None:
    """Nothing is counted, and nothing is made up."""
    report = run(small_graph(steps=2), runtime="inline", run_dir=tmp_path / "run")
    assert report["mfu"]["total"] is None
    assert report["mfu"]["stages"] == {}


@pytest.mark.slow
def test_a_measured_peak_says_how() -> None:
    """It is above what one product takes, and names the product."""
    peak = measure_peak()
    assert peak.flops_per_s > 1e8
    assert "products of 1024 x 1024 in float32, " in peak.origin


SCRIPT = """
import sys
from pathlib import Path
from fakes import small_graph
from flowengine import run
from flowengine.observe.rates import Peak
from flowengine.observe.weights_and_biases import WeightsAndBiases

run_dir, peak = Path(sys.argv[1]), Peak(1e9, "stated")
run_dir.mkdir()
curves = WeightsAndBiases(run_dir, config={"seed": 0}, peak=peak)
run(small_graph(steps=3), runtime="inline", run_dir=run_dir / "run", peak=peak, observers=[curves])
curves.close()
"""


def records_of(log: bytes) -> Iterator[bytes]:
    """The records of wandb's file: a log in LevelDB's format (blocks of 32 KiB; of a record's parts
    each has a checksum, a length and a type) behind seven bytes of its own."""
    assert log[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(log):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(log[at + 4 : at + 6], "little"), log[at + 6]
        if kind == 0:
            return
        parts = (b"" if kind in (1, 2) else parts) + log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts


@pytest.mark.slow
def test_wandb_has_the_curves(tmp_path: Path) -> None:
    """The real client, offline: its own file, read back, has losses and MFU."""
    pytest.importorskip("wandb", reason="needs flowengine[wandb]")
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path, environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").rglob("*.wandb")
    history: list[dict[str, Any]] = []
    ended = None
    for data in records_of(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            history.append(
                {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            )
        elif record.WhichOneof("record_type") == "exit":
            ended = record.exit.exit_code
    lines = (tmp_path / "out" / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [each["loss"] for each in map(json.loads, lines) if each["event"] == "step"]
    logged = [each for each in history if "train/loss" in each]
    assert [each["train/loss"] for each in logged] == losses
    assert [each["step"] for each in logged] == [0, 1, 2]
    assert all(each["mfu/total"] > 0 for each in logged[1:])
    assert ended == 0
