"""Is a graph of decoupled operators faster than the loops it replaces, and by how much of what is
possible?

Question. On two cores, with one encoder and one language-model process: how does the flow at
staleness 0 compare with (a) the same stages in lock-step, where one waits while the other works;
(b) a plain loop with padded batches and a DataLoader, as most people write it, on two threads; (c)
the same loop with packing, on two threads? With two stages the bound of decoupling is (sum of the
stages' work) / (the larger stage's work), measured in the lock-step runs.

Method. The digit cards, as in graphs/digit_cards.py, at several seeds. Every round runs every
variant once, in a process of its own, one after the other; a variant's rate is samples per second
over its steps after the first WARM. Ratios are taken within a round; the figures are medians over
rounds. Idle shares are the stages' time outside work, by cause, over the whole flow but its start.

Bars (--check): flow / lock-step >= 0.9 of the bound, and >= 1.4 where the bound is 1.6 or more;
flow / padded >= 1.45; flow / packed >= 1.15.

Result. See reports/. Where it does not help: with a bound near 1 (one stage does all the work)
there is nothing to overlap, and on one core there is nothing to overlap with.

    python bench/bench_flow.py [--quick] [--json FILE] [--check]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import click

WARM = 3
VARIANTS = ("flow", "lockstep", "packed", "padded", "frozen")


def run_graph(variant: str, *, steps: int, seed: int) -> dict[str, Any]:
    """The graph on the local runtime; "lockstep" has a window of one pack."""
    from flowengine.graph import check
    from flowengine.graphs.digit_cards import build
    from flowengine.runtime.events import Event, RunDone, StepDone
    from flowengine.runtime.local import LocalRun

    graph = build(steps=steps, seed=seed)
    graph.evaluations.clear()
    graph.stages = [stage for stage in graph.stages if stage.signature.outputs]
    encoder = graph.stage("vision_encoder")
    encoder.window = 1 if variant == "lockstep" else None
    encoder.freeze = variant == "frozen"
    check(graph)
    ends: list[tuple[float, int]] = []
    seen: list[dict[str, Any]] = []
    causes: dict[str, Any] = {}

    def observe(event: Event) -> None:
        if isinstance(event, RunDone):
            causes.update({stage.stage: stage.causes for stage in event.status.stages})
        elif isinstance(event, StepDone):
            ends.append((event.wall_s, event.samples))
            seen.append({s.stage: s for s in run.status().stages})

    with tempfile.TemporaryDirectory() as directory:
        run = LocalRun(graph, run_dir=Path(directory), observe=observe)
        run.run()
    took = ends[-1][0] - ends[WARM - 1][0]
    work = {
        name: (seen[-1][name].busy_s - seen[WARM - 1][name].busy_s) / (steps - WARM)
        for name in seen[0]
    }
    idle: dict[str, dict[str, float]] = {}
    for name, seconds in causes.items():
        idle[name] = {
            cause: value / ends[-1][0]
            for cause, value in seconds.items()
            if "its start" not in cause and "on lease" not in cause and value > 0.005 * took
        }
    samples = sum(samples for _, samples in ends[WARM:])
    return {"samples_per_s": samples / took, "work_s": work, "idle": idle}


def run_loop(variant: str, *, steps: int, seed: int) -> dict[str, Any]:
    """A plain loop in this process, on two threads."""
    import torch
    from loops import packed_loop, padded_loop

    torch.set_num_threads(2)
    loop = {"packed": packed_loop, "padded": padded_loop}[variant]
    ends = []
    for _ in loop(steps=steps, seed=seed):
        ends.append(time.perf_counter())
    return {"samples_per_s": 64 * (steps - WARM) / (ends[-1] - ends[WARM - 1])}


def measure(variant: str, *, steps: int, seed: int) -> dict[str, Any]:
    """One variant in a fresh process."""
    command = [sys.executable, __file__, "--variant", variant]
    command += ["--steps", str(steps), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"variant {variant} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def summarise(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over rounds: rates, ratios within a round, the bound, work and idle shares."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for figures in rounds:
        rate = {name: figure["samples_per_s"] for name, figure in figures.items()}
        work = figures["lockstep"]["work_s"]
        pair = (work["vision_encoder"], work["language_model"])
        ratios["bound"].append(sum(pair) / max(pair))
        for other in ("lockstep", "padded", "packed"):
            ratios[f"flow/{other}"].append(rate["flow"] / rate[other])
        ratios["of_bound"].append(ratios["flow/lockstep"][-1] / ratios["bound"][-1])
    first = rounds[0]
    return {
        "samples_per_s": {n: median(r[n]["samples_per_s"] for r in rounds) for n in first},
        "ratios": {name: median(values) for name, values in ratios.items()},
        "work_ms": {
            name: 1e3 * median(r["lockstep"]["work_s"][name] for r in rounds)
            for name in first["lockstep"]["work_s"]
        },
        "idle": {
            stage: {
                cause: median(r["flow"]["idle"][stage].get(cause, 0.0) for r in rounds)
                for cause in first["flow"]["idle"][stage]
            }
            for stage in ("vision_encoder", "language_model")
        },
        "rounds": len(rounds),
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "date": date.today().isoformat(),
    }


def bars(summary: dict[str, Any]) -> list[tuple[str, float, float]]:
    """What must hold: name, found, least."""
    ratios = summary["ratios"]
    found = [
        ("flow / lock-step, of the bound", ratios["of_bound"], 0.9),
        ("flow / padded loop", ratios["flow/padded"], 1.45),
        ("flow / packed loop", ratios["flow/packed"], 1.15),
    ]
    if ratios["bound"] >= 1.6:
        found.append(("flow / lock-step", ratios["flow/lockstep"], 1.4))
    return found


def show(summary: dict[str, Any]) -> None:
    """Prints the figures."""
    work = ", ".join(f"{name} {ms:.0f} ms" for name, ms in summary["work_ms"].items())
    click.echo(f"work per step of 64 samples (lock-step): {work}")
    for stage, causes in summary["idle"].items():
        shares = ", ".join(f"{cause} {share:.1%}" for cause, share in causes.items())
        click.echo(f"idle in the flow, {stage}: {shares or 'none'}")
    for name, rate in summary["samples_per_s"].items():
        click.echo(f"{name:10s} {rate:7.1f} samples/s")
    click.echo(f"bound of decoupling {summary['ratios']['bound']:.2f}")
    for name, found, least in bars(summary):
        click.echo(f"{'ok  ' if found >= least else 'MISS'} {name}: {found:.2f} (bar {least})")


@click.command()
@click.option("--quick", is_flag=True, help="one round of few steps, under a minute")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the figures")
@click.option("--check", is_flag=True, help="exit 1 where a bar is missed")
@click.option("--variant", type=click.Choice(VARIANTS), hidden=True)
@click.option("--steps", type=int, default=30, hidden=True)
@click.option("--seed", type=int, default=0, hidden=True)
@click.option("--rounds", type=int, default=5, show_default=True)
def main(
    quick: bool,
    json_file: Path | None,
    check: bool,
    variant: str | None,
    steps: int,
    seed: int,
    rounds: int,
) -> None:
    """Flow against lock-step, packed and padded loops on the digit cards."""
    if variant is not None:
        run = run_loop if variant in ("packed", "padded") else run_graph
        click.echo(json.dumps(run(variant, steps=steps, seed=seed)))
        return
    if quick:
        rounds, steps = 1, 8
    measured = []
    for number in range(rounds):
        order = VARIANTS[number % len(VARIANTS) :] + VARIANTS[: number % len(VARIANTS)]
        measured.append({name: measure(name, steps=steps, seed=number) for name in order})
        click.echo(f"round {number + 1} of {rounds} done", err=True)
    summary = summarise(measured)
    show(summary)
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n")
    if check and any(found < least for _, found, least in bars(summary)):
        sys.exit(1)


if __name__ == "__main__":
    main()
