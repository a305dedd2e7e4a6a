"""The command pack: the plan it writes, the report it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import feather, parquet

from flowengine.cli.main import main
from flowengine.schedule import pack

LENGTHS = np.random.default_rng(0).integers(1, 4000, 300)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["pack", *map(str, arguments)])


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "dataset.parquet"
    parquet.write_table(pa.table({"tokens": LENGTHS, "text": ["x"] * len(LENGTHS)}), path)
    return path


def test_plan_is_that_of_the_function(dataset: Path, tmp_path: Path) -> None:
    """The plan holds every sample once, in the packs of flowengine.schedule.pack."""
    plan = tmp_path / "plan.parquet"
    done = run(dataset, "--max-tokens", 8192, "-o", plan)
    assert done.exit_code == 0, done.output
    table = parquet.read_table(plan)
    ids, offsets = pack(LENGTHS, max_tokens=8192)
    assert table.column_names == ["sample", "pack"]
    np.testing.assert_array_equal(table["sample"], ids)
    np.testing.assert_array_equal(np.bincount(table["pack"]), np.diff(offsets))
    assert f"{len(offsets) - 1} packs (no packing has fewer than" in done.output


def test_report_as_json(dataset: Path, tmp_path: Path) -> None:
    """--json prints the figures, and nothing else."""
    done = run(dataset, "--max-tokens", 8192, "-o", tmp_path / "plan", "--json")
    report = json.loads(done.output)
    assert report["samples"] == 300
    assert report["tokens"] == LENGTHS.sum()
    assert report["fill"] == pytest.approx(LENGTHS.sum() / (8192 * report["packs"]))
    assert report["least_packs"] <= report["packs"]


def test_replicas_get_packs_of_like_cost(dataset: Path, tmp_path: Path) -> None:
    """With --replicas every slot has a pack per replica, and little time is lost by waiting."""
    plan = tmp_path / "plan.parquet"
    options = ("--replicas", 4, "--quadratic", 1 / 24576, "--json")
    report = json.loads(run(dataset, "--max-tokens", 8192, "-o", plan, *options).output)
    table = parquet.read_table(plan)
    places = {(p, s, r) for p, s, r in zip(*map(list, table.columns[1:]), strict=True)}
    assert len(places) == report["packs"] == len({place[1:] for place in places})
    assert report["slots"] == -(-report["packs"] // 4)
    assert 0 <= report["waiting"] < 0.05


@pytest.mark.parametrize("form", ["file", "stream", "lists"])
def test_reads_arrow_and_lists_of_tokens(tmp_path: Path, form: str) -> None:
    """Arrow files and streams are read as parquet is, and lists of tokens count."""
    path, lengths = tmp_path / "dataset.arrow", [3, 0, 2, 4]
    if form == "stream":
        table = pa.table({"tokens": lengths})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    elif form == "file":
        feather.write_feather(pa.table({"tokens": lengths}), path, compression="uncompressed")
    else:
        lists = [list(range(length)) for length in lengths]
        feather.write_feather(pa.table({"tokens": lists}), path, compression="uncompressed")
    done = run(path, "--max-tokens", 5, "-o", tmp_path / "plan", "--json")
    assert json.loads(done.output)["packs"] == 2


@pytest.mark.parametrize(("policy", "packs", "dead"), [("own-pack", 2, 0), ("dead-letter", 1, 1)])
def test_longer_than_a_pack(tmp_path: Path, policy: str, packs: int, dead: int) -> None:
    """--too-long says what becomes of a longer sample."""
    path = tmp_path / "dataset.parquet"
    parquet.write_table(pa.table({"tokens": [3, 9, 2]}), path)
    refused = run(path, "--max-tokens", 5, "-o", tmp_path / "plan")
    assert refused.exit_code == 2
    assert "row 1 has 9 tokens, a pack holds 5; raise it, or add" in refused.output
    done = run(path, "--max-tokens", 5, "-o", tmp_path / "plan", "--too-long", policy, "--json")
    report = json.loads(done.output)
    assert (report["packs"], report["dead_letters"], report["too_long"]) == (packs, dead, 1)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"length": [1, 2]}, "has no column 'tokens'; it has length"),
        ({"tokens": [1, None]}, "row 1 of 'tokens' is null"),
        ({"tokens": [1, -2]}, "row 1 of 'tokens' is -2; expected 0 or more"),
        ({"tokens": ["a", "b"]}, "'tokens' is string; expected integers or lists"),
    ],
)
def test_wrong_columns_are_refused(tmp_path: Path, table: dict[str, object], text: str) -> None:
    """What is no column of lengths is refused by name, row and value."""
    path = tmp_path / "dataset.parquet"
    parquet.write_table(pa.table(table), path)
    done = run(path, "--max-tokens", 5, "-o", tmp_path / "plan.parquet")
    assert done.exit_code == 2
    assert text in " ".join(done.output.split())
    assert not (tmp_path / "plan.parquet").exists()


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    """A file that is neither parquet nor Arrow is refused by name."""
    for name in ("dataset.parquet", "dataset.arrow"):
        (tmp_path / name).write_text("no table at all")
        done = run(tmp_path / name, "--max-tokens", 5, "-o", tmp_path / "plan")
        assert done.exit_code == 2
        assert name in done.output


def test_time_per_step(dataset: Path, tmp_path: Path) -> None:
    """A step takes as long as the costliest packs of its slots, in tokens where nothing else is
    known."""
    options = ("--max-tokens", 8192, "-o", tmp_path / "plan.parquet")
    found = json.loads(run(dataset, *options, "--json", "--microbatches", 4).output)
    step = found["step"]
    assert step["steps"] == -(-found["packs"] // 4)
    assert step["mean"] * step["steps"] == pytest.approx(LENGTHS.sum())
    assert step["max"] <= 4 * 8192
    assert step["unit"] == "cost"
    assert f"{step['steps']} steps of" in run(dataset, *options, "--microbatches", 4).output


def test_costs_of_a_run(dataset: Path, tmp_path: Path) -> None:
    """With --cost-of a step's time is in seconds, as that run's packs were measured."""
    last = {"linear": 1e-5, "quadratic": 0.0, "constant": 0.0}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"config": {}}')
    (tmp_path / "run" / "report.json").write_text(json.dumps({"cost": {"last": last}}))
    options = ("--max-tokens", 8192, "-o", tmp_path / "plan.parquet", "--cost-of", tmp_path / "run")
    step = json.loads(run(dataset, *options, "--json").output)["step"]
    assert step["unit"] == "s"
    assert step["mean"] * step["steps"] == pytest.approx(1e-5 * LENGTHS.sum())
    assert " s at most" in run(dataset, *options).output
    refused = run(dataset, *options, "--quadratic", 0.1)
    assert "is measured; remove it, or --cost-of" in refused.output
    (tmp_path / "run" / "report.json").write_text(json.dumps({"cost": {"last": None}}))
    assert "too few packs were trained" in run(dataset, *options).output
