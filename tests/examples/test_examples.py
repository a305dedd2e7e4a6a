"""Every example runs, quickly, and prints something."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(ROOT.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    """An example ends well and prints at least a line."""
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_examples() -> None:
    """The folder is found, so that the test above tests something."""
    named = {"functions", "custom_encoder", "packing", "unbalanced"}
    assert named <= {path.stem for path in EXAMPLES}


def test_an_encoder_is_at_most_thirty_lines() -> None:
    """What README and documents promise of an encoder of one's own."""
    tree = ast.parse((ROOT / "custom_encoder.py").read_text())
    found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    encoder = found["SeriesEncoder"]
    assert encoder.end_lineno is not None
    assert encoder.end_lineno - encoder.lineno + 1 <= 30
