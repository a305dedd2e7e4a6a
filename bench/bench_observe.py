"""What does it cost a run to be seen: everything switched on against everything switched off?

Question. By how much is a step longer when a run records spans, packs, occupancy and the catalogue,
draws the live view on a terminal, serves Prometheus and writes TensorBoard events?

Method. The digit cards, as in graphs/digit_cards.py without its evaluation, on the local runtime.
Pairs of runs, one "off" (no spans, no observer at all) and one "on" (all of the above, the view
drawn by rich for a terminal that is a file, the endpoint read once a second), each in a process of
its own, in turns: off on, on off, ... A run's figure is its time per step after the first WARM; a
pair's is on / off; the result is the median over pairs. The processor time of supervisor and
workers is taken as well. Pages, packs and seeds of a pair are equal, so the mathematics is. The
report that is drawn when the run is over is not in the steps; what it takes is printed.

Bar (--check): on / off < 1.02.

Result. See reports/. Where it does not hold: a graph whose steps take a few milliseconds.

    python bench/bench_observe.py [--quick] [--json FILE] [--check]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import click

WARM = 5
BAR = 1.02


def run_graph(variant: str, *, steps: int, seed: int) -> dict[str, float]:
    """One run: seconds per step after the first WARM, and seconds that its report took."""
    from flowengine.graph import check
    from flowengine.graphs.digit_cards import build
    from flowengine.observe.page import write_page
    from flowengine.runtime.events import Event, Observer, RunStarted, StepDone
    from flowengine.runtime.local import LocalRun

    graph = build(steps=steps, seed=seed)
    graph.evaluations.clear()
    graph.stages = [stage for stage in graph.stages if stage.signature.outputs]
    check(graph)
    ends: list[float] = []
    cpu_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        with ExitStack() as stack:
            observers: list[Observer] = []
            if variant == "on":
                observers = stack.enter_context(everything(graph, run_dir))

            def observe(event: Event) -> None:
                if isinstance(event, StepDone):
                    ends.append(event.wall_s)
                    if event.step in (WARM - 1, steps - 1):
                        cpu_s.append(group_cpu_s())
                for observer in observers:
                    observer(event)

            names = tuple(stage.name for stage in graph.stages)
            observe(RunStarted(graph.name, "local", run_dir, steps, names))
            LocalRun(graph, run_dir=run_dir, observe=observe, spans=variant == "on").run()
        began = time.perf_counter()
        if variant == "on":
            write_page(run_dir)
        report_s = time.perf_counter() - began
    return {
        "step_s": (ends[-1] - ends[WARM - 1]) / (steps - WARM),
        "cpu_s": (cpu_s[1] - cpu_s[0]) / (steps - WARM),
        "report_s": report_s,
    }


def group_cpu_s() -> float:
    """Processor seconds so far of all processes of this process group: supervisor and workers."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == os.getpgrp():
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def everything(graph: Any, run_dir: Path) -> Iterator[list[Any]]:
    """All observers there are; those whose library is missing are left out, and named."""
    from flowengine.errors import FlowError
    from flowengine.observe import Aside, Progress, Recorder
    from flowengine.observe.progress import Screen
    from flowengine.observe.prometheus import Prometheus
    from flowengine.observe.tensorboard import TensorBoard

    with ExitStack() as stack:
        terminal = stack.enter_context((run_dir / "terminal").open("w", encoding="utf-8"))
        screen = Screen(file=terminal, force_terminal=True, width=160, height=40)
        observers: list[Any] = [
            stack.enter_context(Recorder(graph, run_dir=run_dir, command=[])),
            stack.enter_context(Aside(Progress(screen))),
        ]
        try:
            endpoint = Prometheus(port=0)
            stack.callback(endpoint.close)
            stack.enter_context(_scraping(f"http://127.0.0.1:{endpoint.port}/metrics"))
            observers.append(endpoint)
            board = TensorBoard(run_dir / "tensorboard")
            stack.callback(board.close)
            observers.append(board)
        except FlowError as error:
            click.echo(f"left out: {error}", err=True)
        yield observers


@contextmanager
def _scraping(url: str) -> Iterator[None]:
    """Reads the endpoint once a second."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(1.0):
            urllib.request.urlopen(url, timeout=5).read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def measure(variant: str, *, steps: int, seed: int) -> dict[str, float]:
    """One variant in a fresh process."""
    command = [sys.executable, __file__, "--variant", variant]
    command += ["--steps", str(steps), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        raise click.ClickException(f"variant {variant} failed:\n{done.stderr[-2000:]}")
    click.echo(done.stderr, nl=False, err=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def summarise(pairs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Medians over the pairs, and every pair's ratio."""
    ratios = [pair["on"]["step_s"] / pair["off"]["step_s"] for pair in pairs]
    cpu = [pair["on"]["cpu_s"] / pair["off"]["cpu_s"] for pair in pairs]
    return {
        "cpu on/off": median(cpu),
        "cpu_ratios": cpu,
        "off_step_ms": 1e3 * median(pair["off"]["step_s"] for pair in pairs),
        "on_step_ms": 1e3 * median(pair["on"]["step_s"] for pair in pairs),
        "on/off": median(ratios),
        "ratios": ratios,
        "report_s": median(pair["on"]["report_s"] for pair in pairs),
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "date": date.today().isoformat(),
    }


@click.command()
@click.option("--quick", is_flag=True, help="one pair of few steps, under a minute")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the figures")
@click.option("--check", is_flag=True, help="exit 1 where the bar is missed")
@click.option("--variant", type=click.Choice(["on", "off"]), hidden=True)
@click.option("--steps", type=int, default=45, hidden=True)
@click.option("--seed", type=int, default=0, hidden=True)
@click.option("--pairs", type=int, default=5, show_default=True)
def main(
    quick: bool,
    json_file: Path | None,
    check: bool,
    variant: str | None,
    steps: int,
    seed: int,
    pairs: int,
) -> None:
    """Everything that shows a run, on against off."""
    if variant is not None:
        click.echo(json.dumps(run_graph(variant, steps=steps, seed=seed)))
        return
    if quick:
        pairs, steps = 1, 20
    measured = []
    for number in range(pairs):
        order = ("off", "on") if number % 2 == 0 else ("on", "off")
        measured.append({name: measure(name, steps=steps, seed=number) for name in order})
        click.echo(f"pair {number + 1} of {pairs} done", err=True)
    summary = summarise(measured)
    ratios = ", ".join(f"{ratio:.3f}" for ratio in summary["ratios"])
    click.echo(f"off {summary['off_step_ms']:.1f} ms a step, on {summary['on_step_ms']:.1f} ms")
    click.echo(f"pairs, on / off: {ratios}")
    cpu = ", ".join(f"{ratio:.3f}" for ratio in summary["cpu_ratios"])
    click.echo(f"processor time, on / off: {summary['cpu on/off']:.3f} ({cpu})")
    click.echo(f"the report takes {summary['report_s']:.1f} s after the last step")
    missed = summary["on/off"] >= BAR
    click.echo(f"{'MISS' if missed else 'ok  '} on / off: {summary['on/off']:.3f} (bar {BAR})")
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n")
    if check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
