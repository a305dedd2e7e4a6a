"""The commands plan and simulate: files, figures, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowengine.cli.main import main

GRAPH = "graphs/sound_cards.py"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    done = run("plan", GRAPH, "--devices", "8xH200", "--steps", 4, "-o", path)
    assert done.exit_code == 0, done.output
    assert "the bottleneck is" in done.output
    return path


def test_a_plan_has_every_stage_with_weights(plan: Path) -> None:
    """Two encoders and the language model, on no more devices than there are."""
    found = json.loads(plan.read_text())
    assert set(found["stages"]) == {"vision_encoder", "audio_encoder", "language_model"}
    assert sum(stage["devices"] for stage in found["stages"].values()) <= 8


def test_simulation_follows_the_plan(plan: Path) -> None:
    """simulate --plan predicts what the plan does."""
    done = run("simulate", GRAPH, "--plan", plan, "--steps", 4, "--json")
    assert done.exit_code == 0, done.output
    predicted = json.loads(plan.read_text())["predicted"]
    assert json.loads(done.output)["flow"]["step_s"] == pytest.approx(predicted["step_s"])


def test_simulation_leaves_a_trace_and_a_picture(plan: Path, tmp_path: Path) -> None:
    """A trace with every stage, and SVG without a page's variables."""
    trace, svg = tmp_path / "trace.json", tmp_path / "steps.svg"
    done = run("simulate", GRAPH, "--plan", plan, "--steps", 4, "--trace", trace, "--svg", svg)
    assert done.exit_code == 0, done.output
    named = {
        e["args"]["name"]
        for e in json.loads(trace.read_text())["traceEvents"]
        if "M" in e["ph"] and "name" in e["args"]
    }
    assert "language_model" in named
    drawn = svg.read_text()
    assert drawn.startswith("<svg")
    assert drawn.endswith("</svg>")
    assert "var(--" not in drawn


def test_without_the_pool_a_run_is_slower() -> None:
    """Handing over a step at a time costs time, where a step has many packs."""
    many = ("samples=256", "max_tokens=256", "--devices", "8xH200")
    common = ("simulate", GRAPH, *many, "--steps", 4, "--json")
    whole = json.loads(run(*common).output)["flow"]
    less = json.loads(run(*common, "--without", "pool").output)["flow"]
    assert less["step_s"] > whole["step_s"]


def test_against_all(plan: Path) -> None:
    """Baselines have the same samples; none is faster than the objective alone."""
    done = run("simulate", GRAPH, "--plan", plan, "--steps", 4, "--against", "all", "--json")
    found = json.loads(done.output)
    assert set(found) == {"flow", "monolithic", "synchronous", "bound"}
    assert min(each["step_s"] for each in found.values()) == found["bound"]["step_s"]


def test_a_plan_of_another_graph_is_refused(plan: Path) -> None:
    """With the names of both."""
    done = run("simulate", "graphs/digit_cards.py", "--plan", plan)
    assert done.exit_code == 3
    assert "is for graph 'sound_cards', this is 'digit_cards'" in done.output


def test_what_is_no_plan_is_refused(tmp_path: Path) -> None:
    """Any other JSON, with what was expected."""
    path = tmp_path / "plan.json"
    path.write_text("{}")
    done = run("simulate", GRAPH, "--plan", path)
    assert done.exit_code == 3
    assert "is no plan" in done.output


def test_too_few_devices_are_refused() -> None:
    """Three stages need three devices."""
    done = run("plan", GRAPH, "--devices", "2xH200", "--steps", 4)
    assert done.exit_code == 3
    assert "need 3 devices together, there are 2" in done.output
