"""The commands verify and export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowengine.cli.main import main

ROOT = Path(__file__).parents[2]

WRONG = """
import sys
sys.path.insert(0, {tests!r})
from fakes import small_graph
from flowengine.operators.language import LanguageModel

class Averaged(LanguageModel):
    def loss(self, module, pack):
        return super().loss(module, pack) / (pack.labels != -100).sum()

def build():
    return small_graph(dtype="float64")

def wrong():
    graph = small_graph(dtype="float64")
    model = graph.stage("model").what
    graph.stage("model").what = Averaged(vocabulary=23, width=12, depth=1, heads=2, groups=1)
    return graph
"""


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


@pytest.mark.slow
def test_verify_prints_differences_and_exits_by_them(tmp_path: Path) -> None:
    """A right graph exits with 0, one that averages means with 1, each with its table."""
    file = tmp_path / "graph.py"
    file.write_text(WRONG.format(tests=str(ROOT / "tests")))
    right = invoke("verify", str(file), "--runtime", "inline", "--steps", "2")
    assert right.exit_code == 0, right.output
    assert "against the graph's operators, sample by sample, 2 step(s)" in right.output
    assert "model  predict.weight" in right.output
    assert "ok: loss by" in right.output
    wrong = invoke("verify", f"{file}:wrong", "--runtime", "inline")
    assert wrong.exit_code == 1
    assert "differs: loss by" in wrong.output
    told = json.loads(invoke("verify", f"{file}:wrong", "--runtime", "inline", "--json").output)
    assert told["agrees"] is False
    assert max(told["differences"]["model"].values()) > told["tolerance"]


def test_export_refuses_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    """A run of operators that were made here has no original form."""
    found = invoke("export", str(tmp_path), "--to", str(tmp_path / "out"))
    assert found.exit_code == 2
    assert "its weights come from no checkpoint; expected one checkpoint" in found.output


@pytest.mark.slow
def test_verify_and_export_a_pretrained_graph(tmp_path: Path) -> None:
    """From a checkpoint through verify, run and export to a checkpoint again, on the shell."""
    from fakes_pretrained import make_checkpoint, transformers

    path = make_checkpoint("qwen3", tmp_path / "base")
    file = tmp_path / "graph.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "from fakes_pretrained import pretrained_graph\n"
        f"def build():\n    return pretrained_graph({path!r}, steps=1)\n"
    )
    verified = invoke("verify", str(file), "--dtype", "float64", "--runtime", "inline")
    assert verified.exit_code == 0, verified.output
    assert "against Qwen3VLForConditionalGeneration, sample by sample" in verified.output
    run_dir, out = tmp_path / "run", tmp_path / "out"
    ran = invoke("run", str(file), "--runtime", "inline", "--run-dir", str(run_dir), "--quiet")
    assert ran.exit_code == 0, ran.output
    assert invoke("export", str(run_dir), "--to", str(out), "--dtype", "bfloat16").exit_code == 0
    model = transformers.AutoModelForImageTextToText.from_pretrained(out)
    assert {str(p.dtype) for p in model.parameters()} == {"torch.bfloat16"}
