"""The commands operators and new."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flowengine.cli.main import main
from flowengine.cli.skeletons import SKELETONS


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def listed() -> dict[str, dict[str, Any]]:
    found = invoke("operators", "--json")
    assert found.exit_code == 0, found.output
    return {each["name"]: each for each in json.loads(found.output)}


def register(path: Path, entries: str) -> None:
    """A package in `path` that registers these operators."""
    info = path / "thirdparty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[flowengine.operators]\n{entries}")
    (path / "thirdparty.py").write_text(
        "from flowengine.api import Operator, Sample\n\n\nclass Louder(Operator):\n"
        '    """Says it louder."""\n\n'
        "    def process(self, sample: Sample) -> Sample:\n        return sample\n"
    )


@pytest.mark.slow
def test_the_library_is_listed() -> None:
    """Every shelf's operators are there, with their kinds, and abstract bases are not."""
    found = listed()
    wanted = {
        "DigitCards": "source",
        "VisionEncoder": "encoder",
        "AudioEncoder": "encoder",
        "PretrainedVision": "encoder",
        "CostPacker": "packer",
        "PretrainedLanguage": "objective",
        "Accuracy": "sink",
    }
    assert {name: found[name]["kind"] for name in wanted} == wanted
    assert "Records" not in found
    assert "DigitCards" in invoke("operators").output


@pytest.mark.slow
def test_registered_operators_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package's operators are found by their entry points; a broken one says what is wrong."""
    register(
        tmp_path,
        "Louder = thirdparty:Louder\nGone = thirdparty:Gone\nNumber = thirdparty:__name__\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = listed()
    louder = {"kind": "function", "package": "thirdparty", "summary": "Says it louder."}
    assert louder.items() <= found["Louder"].items()
    assert found["Gone"]["kind"] == "broken"
    assert "no attribute 'Gone'" in found["Gone"]["summary"]
    assert "is no operator class" in found["Number"]["summary"]


@pytest.mark.slow
def test_new_operators_pass_their_tests(tmp_path: Path) -> None:
    """The files that `new operator` writes, of every kind, are run by pytest as they are."""
    for kind in SKELETONS:
        done = invoke("new", "operator", f"My{kind.title()}", "--kind", kind, "--to", str(tmp_path))
        assert done.exit_code == 0, done.output
        assert {f"my_{kind}.py", f"test_my_{kind}.py"} <= {path.name for path in tmp_path.iterdir()}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout


def test_new_refuses_what_it_would_spoil(tmp_path: Path) -> None:
    """A name that is no class's, and a file that is there, are refused."""
    assert "expected a class name such as" in invoke("new", "operator", "my-thing").output
    (tmp_path / "thing.py").write_text("mine")
    found = invoke("new", "operator", "Thing", "--to", str(tmp_path))
    assert found.exit_code == 2
    assert "exists" in found.output
    assert (tmp_path / "thing.py").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1
