"""What a run did with a sample, told afterwards."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from fakes import small_graph

from flowengine import run
from flowengine.cli.main import main
from flowengine.observe.lineage import entries_of_sample, entries_of_step


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps of eight samples, at staleness 1, with an evaluation."""
    directory = tmp_path_factory.mktemp("run")
    run(small_graph(staleness=1, evaluate=4), runtime="inline", run_dir=directory)
    return directory


def ask(run_dir: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["lineage", str(run_dir), *options])
    return done.exit_code, done.output


def test_a_step_names_its_samples_and_versions(run_dir: Path) -> None:
    """The samples with a picture of a step, each once, with the weights that encoded them."""
    for step in range(4):
        entries = entries_of_step(run_dir, step)
        samples = sorted(entry.sample for entry in entries)
        assert samples == [i for i in range(8 * step, 8 * step + 8) if i % 3 != 2]
        assert {entry.version for entry in entries} == {max(0, step - 1)}
        assert [entry.pack for entry in entries] == sorted(entry.pack for entry in entries)
    code, text = ask(run_dir, "--step", "2")
    assert code == 0
    assert re.match(r"step 2: 5 entries of 5 samples in \d packs\n", text)
    assert text.count("encoder[0] made float32[") == text.count("with version 1 at ") == 5


def test_a_sample_tells_what_happened_to_it(run_dir: Path) -> None:
    """Which step and pack it was in, who made what of it, and how that ended."""
    (entry,) = entries_of_sample(run_dir, 10)
    assert (entry.step, entry.held_out, entry.stage, entry.state) == (
        1,
        False,
        "encoder",
        "gradient",
    )
    code, text = ask(run_dir, "--sample", "10", "--json")
    assert json.loads(text) == [{**asdict(entry), "shape": list(entry.shape)}]
    code, text = ask(run_dir, "--sample", "10")
    assert code == 0
    assert re.search(
        r"  step 1 pack \d sample 10: encoder\[0\] made float32\[\d, 12\] with version 0 at "
        r"[\d.]+ s, \d+ bytes at 0x1[0-9a-f]{15} \(host\); gradient at [\d.]+ s\n",
        text,
    )


def test_a_held_out_sample_is_told_apart(run_dir: Path) -> None:
    """Held-out samples have negative ids, and are in no step."""
    code, text = ask(run_dir, "--sample", "-1")
    assert code == 0
    assert "  held out after step 4 pack 0 sample -1: " in text
    assert "; released at " in text


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--sample", "4711"), 1, "sample 4711 is not in the catalogue of "),
        (("--step", "9"), 1, "step 9 is not in the catalogue of "),
        ((), 2, "give either --sample or --step"),
        (("--step", "1", "--sample", "1"), 2, "give either --sample or --step"),
    ],
    ids=["sample", "step", "neither", "both"],
)
def test_what_is_not_there_is_an_error(
    run_dir: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    """An unknown sample or step is an error, and so is a question that is none."""
    assert ask(run_dir, *options)[0] == code
    assert message in ask(run_dir, *options)[1]


def test_a_directory_without_a_catalogue_is_refused(tmp_path: Path) -> None:
    """A directory that is no run's is a wrong argument."""
    code, text = ask(tmp_path, "--step", "0")
    assert code == 2
    assert "has no catalogue.parquet; name a run's directory" in " ".join(text.split())
