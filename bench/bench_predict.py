"""Does the simulator say how long a step takes on this machine, from the profile alone?

Question. `flowengine profile` measures every operator alone; `flowengine simulate` then predicts a
step's time with one encoder process, with two, and in lock-step. How far off is it, on the digit
cards and on a graph with wider and deeper models?

Method. Per round and graph: one profile, then a run of the local runtime per variant, each in a
process of its own. Measured is the mean time between the ends of steps after WARM; predicted, the
simulation's over the same steps. The error of a variant is the median over rounds of predicted /
measured - 1. Nothing of a run enters the prediction. Processes share two cores, in the simulation
as well; evaluations and sinks are left out of both.

Bars (--check): every error is within 15 %.

Result. See reports/. Where it does not help: on a machine whose other load changes between the
profile and the run, the prediction is of the machine as it was.

    python bench/bench_predict.py [--quick] [--json FILE] [--check]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import click

WARM = 3
BAR = 0.15
GRAPHS = ("digit_cards", "larger")
VARIANTS = {"digit_cards": ("one", "two", "lockstep"), "larger": ("one", "two")}


def build_graph(name: str, *, steps: int, seed: int) -> Any:
    """The graph without evaluations; "larger" has four times the work per sample."""
    from flowengine.graphs.digit_cards import build
    from flowengine.operators.language import LanguageModel
    from flowengine.operators.sources import DigitCards
    from flowengine.operators.vision import VisionEncoder

    graph = build(steps=steps, seed=seed, samples=64 if name == "digit_cards" else 32)
    graph.evaluations.clear()
    graph.stages = [stage for stage in graph.stages if stage.signature.outputs]
    if name == "larger":
        graph.stage("vision_encoder").what = VisionEncoder(width=128, depth=4, heads=4, output=256)
        words = DigitCards.vocabulary
        model = LanguageModel(vocabulary=words, width=256, depth=4, groups=8)
        graph.stage("language_model").what = model
    return graph


def vary(graph: Any, variant: str) -> Any:
    """The graph with one encoder process, two, or one that hands over pack by pack."""
    encoder = graph.stage("vision_encoder")
    encoder.replicas = 2 if variant == "two" else 1
    encoder.window = 1 if variant == "lockstep" else None
    return graph


def profile(name: str, *, steps: int, seed: int, path: Path) -> None:
    """Writes the profile of a graph."""
    from flowengine.graph import check
    from flowengine.plan.measure import measure_graph

    graph = build_graph(name, steps=steps, seed=seed)
    check(graph)
    measure_graph(graph).write(path)


def predict(name: str, variant: str, *, steps: int, seed: int, path: Path) -> dict[str, Any]:
    """Seconds a step, by simulation, and each stage's work of a step."""
    from flowengine.plan import Parallel, make_setting, simulate_without
    from flowengine.plan.profile import read_profile

    graph = vary(build_graph(name, steps=steps, seed=seed), variant)
    cores = len(os.sched_getaffinity(0))
    setting = make_setting(graph, f"{cores}xcpu", steps=steps, profile=read_profile(path))
    stages = ("vision_encoder", "language_model")
    layouts = {each: Parallel(graph.stage(each).replicas) for each in stages}
    figures, flow = simulate_without(setting, layouts=layouts)
    work = dict.fromkeys(figures.bubbles, 0.0)
    for stretch in flow.clock.stretches:
        if stretch.state == "busy" and stretch.began >= flow.ends[WARM - 1]:
            work[flow.actors[stretch.actor].stage] += stretch.ended - stretch.began
    return {"step_s": figures.step_s, "work_s": {k: v / (steps - WARM) for k, v in work.items()}}


def measure(name: str, variant: str, *, steps: int, seed: int) -> dict[str, Any]:
    """Seconds a step, by the local runtime, and each stage's work of a step."""
    from flowengine.graph import check
    from flowengine.runtime.events import Event, StepDone
    from flowengine.runtime.local import LocalRun

    graph = vary(build_graph(name, steps=steps, seed=seed), variant)
    check(graph)
    ends: list[float] = []
    busy: list[dict[str, float]] = []

    def observe(event: Event) -> None:
        if isinstance(event, StepDone):
            ends.append(event.wall_s)
            looks: dict[str, float] = {}
            for status in run.status().stages:
                looks[status.stage] = looks.get(status.stage, 0.0) + status.busy_s
            busy.append(looks)

    with tempfile.TemporaryDirectory() as directory:
        run = LocalRun(graph, run_dir=Path(directory), observe=observe)
        run.run()
    counted = steps - WARM
    work = {key: (busy[-1][key] - busy[WARM - 1][key]) / counted for key in busy[0]}
    return {"step_s": (ends[-1] - ends[WARM - 1]) / counted, "work_s": work}


def apart(*arguments: object) -> Any:
    """This bench in a fresh process, for one piece of it."""
    command = [sys.executable, __file__, "--part", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{arguments} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def run_part(what: str, name: str, variant: str, steps: int, seed: int, path: Path) -> Any:
    """What `apart` asked for."""
    if what == "profile":
        profile(name, steps=steps, seed=seed, path=path)
        return {}
    if what == "predict":
        return predict(name, variant, steps=steps, seed=seed, path=path)
    return measure(name, variant, steps=steps, seed=seed)


def run_round(number: int, *, steps: int, graphs: tuple[str, ...]) -> dict[str, Any]:
    """Predictions and measurements by graph and variant."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name in graphs:
            path = Path(directory) / f"{name}.parquet"
            apart("profile", name, "one", steps, number, path)
            found[name] = {
                variant: {
                    what: apart(what, name, variant, steps, number, path)
                    for what in ("predict", "measure")
                }
                for variant in VARIANTS[name]
            }
    return found


def summarise(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over rounds."""
    cases = {}
    for name, variants in rounds[0].items():
        for variant in variants:
            pairs = [
                (each[name][variant]["predict"]["step_s"], each[name][variant]["measure"]["step_s"])
                for each in rounds
            ]
            cases[f"{name}, {variant}"] = {
                "predicted_s": median(one for one, _ in pairs),
                "measured_s": median(other for _, other in pairs),
                "error": median(one / other - 1 for one, other in pairs),
                "rounds": [one / other - 1 for one, other in pairs],
                "work_s": {
                    w: rounds[0][name][variant][w]["work_s"] for w in rounds[0][name]["one"]
                },
            }
    return {
        "cases": cases,
        "cores": len(os.sched_getaffinity(0)),
        "date": date.today().isoformat(),
    }


def show(summary: dict[str, Any]) -> None:
    """Prints the figures."""
    for name, case in summary["cases"].items():
        for what in ("predict", "measure"):
            work = ", ".join(f"{k} {1e3 * v:.0f}" for k, v in case["work_s"][what].items())
            click.echo(f"{name}: work, ms a step, {what}: {work}", err=True)
        held = "ok  " if abs(case["error"]) <= BAR else "MISS"
        spread = ", ".join(f"{each:+.0%}" for each in case["rounds"])
        click.echo(
            f"{held} {name:24s} predicted {1e3 * case['predicted_s']:6.0f} ms, measured "
            f"{1e3 * case['measured_s']:6.0f} ms a step: {case['error']:+.1%} (rounds: {spread})"
        )


@click.command()
@click.option("--quick", is_flag=True, help="one round of the digit cards, under a minute")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the figures")
@click.option("--check", is_flag=True, help="exit 1 where a bar is missed")
@click.option("--rounds", type=int, default=3, show_default=True)
@click.option("--part", type=(str, str, str, int, int, Path), hidden=True)
def main(
    quick: bool,
    json_file: Path | None,
    check: bool,
    rounds: int,
    part: tuple[str, str, str, int, int, Path] | None,
) -> None:
    """Predicted against measured time per step."""
    if part is not None:
        click.echo(json.dumps(run_part(*part)))
        return
    steps, graphs = (10, GRAPHS[:1]) if quick else (12, GRAPHS)
    found = [run_round(each, steps=steps, graphs=graphs) for each in range(1 if quick else rounds)]
    summary = summarise(found)
    show(summary)
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n")
    if check and any(abs(case["error"]) > BAR for case in summary["cases"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
