"""Options that choose steps."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from flowengine.cli.main import main
from flowengine.cli.steps import STEPS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", (range(3, 4),)),
        ("10-12,50", (range(10, 13), range(50, 51))),
        (" 1 , 0-0", (range(1, 2), range(1))),
    ],
)
def test_numbers_and_ranges(text: str, expected: tuple[range, ...]) -> None:
    """Both ends of a range are in it."""
    assert STEPS.convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["", "a", "5-3", "1:3", "-1", "1,,2"])
def test_what_is_no_step(text: str) -> None:
    """What cannot be read is shown, with an example."""
    with pytest.raises(click.BadParameter, match=r"expected a step, or first-last, as in 10-12,50"):
        STEPS.convert(text, None, None)


def test_steps_beyond_the_last(tmp_path: Path) -> None:
    """Steps that the run will not come to are refused before it."""
    graph = tmp_path / "graph.py"
    tests = str(Path(__file__).parents[1])
    graph.write_text(
        f"import sys\nsys.path.insert(0, {tests!r})\nfrom fakes import small_graph as build\n"
    )
    command = ["run", str(graph), "--runtime", "inline", "--torch-profiler", "1,4-6"]
    result = CliRunner().invoke(main, [*command, "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "step 4: the graph has 4 steps, from 0 on" in result.stderr


def test_too_many_to_profile(tmp_path: Path) -> None:
    """So many steps as would fill a disk are refused before the run."""
    command = ["run", "graphs/digit_cards.py", "--torch-profiler", "0-50"]
    result = CliRunner().invoke(main, [*command, "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "51 steps; expected at most 50" in result.stderr
    assert not (tmp_path / "run").exists()
