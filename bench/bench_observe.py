"""What does it cost a run to be seen: everything switched on against everything switched off?

Question. By how much is a step longer when a run records spans, packs, occupancy and the catalogue,
draws the live view on a terminal, serves Prometheus, writes TensorBoard events and exports to
OpenTelemetry?

Method. The digit cards, as in graphs/digit_cards.py without its evaluation, on the local runtime,
with the same 64 pages in every step, so that steps differ by the machine's noise alone. One run; in
it everything is switched on and off in turns, BLOCK steps each: off on, on off, ... (bench/
observe_graph.py says how). A block's figure is the wall time of its steps but the first; a pair's
is on / off; the result is the median over the pairs, with the 95 % confidence interval of a median
(order statistics, so whatever the noise is distributed like). The processor time of supervisor and
workers is taken in the same way. A shared machine is now faster, now slower, by more than the bar,
so it takes many pairs; --earlier counts in those of other runs. "Added" is a bound that needs few:
the supervisor's own processor time, in which all observers run, on less off, and what noting spans
takes in the workers, as a part of the step, as if nothing of it were hidden by waiting. "On" is all
of the above, the view drawn by rich for a terminal that is a file, the endpoint read once a second,
a collector on loopback; reader and collector are another process. What "off" still does is what
every run does: the supervisor looks at its workers four times a second.

Bar (--check): the upper ends of the intervals of on / off and of 1 + added < 1.02.

Result. See reports/. Where it does not hold: a graph whose steps take a few milliseconds.

    python bench/bench_observe.py [--quick] [--json FILE] [--check]
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import click

WARM = 10
BLOCK = 6
BAR = 1.02


class Blocks:
    """Switches from block to block, and keeps what each took."""

    def __init__(self, switch: Any) -> None:
        self._switch = switch
        self._began = (0.0, 0.0, 0.0)
        self.figures: list[tuple[bool, float, float, float]] = []

    def on_step(self, step: int, wall_s: float) -> None:
        """A step is done. The first of a block is not measured."""
        block, place = divmod(step + 1 - WARM, BLOCK)
        if block < 0:
            return
        now = (wall_s, group_cpu_s(), time.process_time() + self._switch.spans_s)
        if place == 0 and block > 0:
            took = [(b - a) / (BLOCK - 1) for a, b in zip(self._began, now, strict=True)]
            self.figures.append((self._switch.is_on, took[0], took[1], took[2]))
        if place == 0:
            self._switch.is_on = (block % 2 == 0) == (block // 2 % 2 == 1)
        elif place == 1:
            self._began = now

    def pairs(self) -> list[dict[str, list[float]]]:
        """Every pair of neighbours: seconds per step, of processors, and of observers."""
        pairs = zip(self.figures[::2], self.figures[1::2], strict=False)
        return [{"on" if b[0] else "off": list(b[1:]) for b in pair} for pair in pairs]


Pairs = list[dict[str, list[float]]]


def measure(pairs: int) -> Pairs:
    """One run of so many pairs of blocks."""
    from observe_switch import SIZE, VARIABLE

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "switch"
        path.write_bytes(bytes(SIZE))
        os.environ[VARIABLE] = str(path)
        run_dir = Path(folder) / "run"
        run_dir.mkdir()
        return run_graph(run_dir, pairs=pairs).pairs()


def run_graph(run_dir: Path, *, pairs: int) -> Blocks:
    """Trains, with everything that shows a run while the switch is on."""
    from observe_graph import make_graph
    from observe_switch import VARIABLE, Switch

    from flowengine.graph import check
    from flowengine.runtime.events import Event, RunStarted, StepDone
    from flowengine.runtime.local import LocalRun

    switch = Switch(Path(os.environ[VARIABLE]))
    blocks = Blocks(switch)
    steps = WARM + 2 * BLOCK * pairs
    graph = make_graph(steps)
    check(graph)
    with everything(graph, run_dir) as observers:

        def observe(event: Event) -> None:
            if switch.is_on or isinstance(event, RunStarted):
                for observer in observers:
                    observer(event)
            if isinstance(event, StepDone):
                blocks.on_step(event.step, event.wall_s)

        names = tuple(stage.name for stage in graph.stages)
        observe(RunStarted(graph.name, "local", run_dir, steps, names))
        LocalRun(graph, run_dir=run_dir, observe=observe).run()
    return blocks


def group_cpu_s() -> float:
    """Processor seconds so far of this process and of all that descend from it, their threads
    included, in the same session: supervisor and workers."""
    parents: dict[int, int] = {}
    session = os.getsid(0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            parents[int(path.parent.name)] = int(fields[1])
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    total_ns = 0
    for pid in mine:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total_ns += int(path.read_text().split()[0])
            except OSError:
                continue
    return total_ns / 1e9


@contextmanager
def everything(graph: Any, run_dir: Path) -> Iterator[list[Any]]:
    """All observers there are; those whose library is missing are left out, and named."""
    from flowengine.errors import FlowError
    from flowengine.observe import Aside, Progress, Recorder
    from flowengine.observe.otel import OpenTelemetry
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
        read = stack.enter_context(_others())
        for make in (
            lambda: Prometheus(port=0),
            lambda: TensorBoard(run_dir / "tensorboard"),
            lambda: OpenTelemetry(["METRICS", "TRACES"]),
        ):
            try:
                observers.append(make())
            except FlowError as error:
                click.echo(f"left out: {error}", err=True)
                continue
            stack.callback(observers[-1].close)
            if isinstance(observers[-1], Prometheus):
                read(f"http://127.0.0.1:{observers[-1].port}/metrics")
        yield observers


@contextmanager
def _others() -> Iterator[Callable[[str], None]]:
    """Other programs, in a process of their own, so that their time is not the run's: a collector
    for OpenTelemetry on loopback, as the environment says; and, once it is told a URL, a reader of
    that."""
    command = [sys.executable, str(Path(__file__).with_name("observe_others.py"))]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
    os.environ["OTEL_BSP_SCHEDULE_DELAY"] = "1000"
    told = process.stdin

    def tell(url: str) -> None:
        told.write(url + "\n")
        told.flush()

    try:
        yield tell
    finally:
        told.close()
        process.wait(10)
        process.stdout.close()


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median: the order statistics between which it lies by the
    binomial distribution (David and Nagaraja, Order Statistics, 2003, section 7.1); all of the
    values where they are too few."""
    ordered, count = sorted(values), len(values)
    below, total = -1, 0.0
    while below + 1 < count // 2:
        total += math.comb(count, below + 1) / 2**count
        if total > 0.025:
            break
        below += 1
    low = max(below, 0)
    return ordered[low], ordered[count - 1 - low]


def summarise(pairs: Pairs) -> dict[str, Any]:
    """Medians with their intervals, and every pair."""
    wall, cpu = ([pair["on"][at] / pair["off"][at] for pair in pairs] for at in (0, 1))
    added = [(pair["on"][2] - pair["off"][2]) / pair["off"][0] for pair in pairs]
    return {
        "off_step_ms": 1e3 * median(pair["off"][0] for pair in pairs),
        "on_step_ms": 1e3 * median(pair["on"][0] for pair in pairs),
        "off_observing_ms": 1e3 * median(pair["off"][2] for pair in pairs),
        "on_observing_ms": 1e3 * median(pair["on"][2] for pair in pairs),
        "on/off": median(wall),
        "on/off interval": interval(wall),
        "cpu on/off": median(cpu),
        "cpu on/off interval": interval(cpu),
        "added": median(added),
        "added interval": interval(added),
        "pairs": pairs,
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "date": date.today().isoformat(),
    }


@click.command()
@click.option("--quick", is_flag=True, help="few pairs, under a minute")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the figures")
@click.option("--check", is_flag=True, help="exit 1 where the bar is missed")
@click.option("--pairs", type=click.IntRange(min=1), default=60, show_default=True)
@click.option(
    "--earlier",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="count in the pairs of this file, from --json on the same machine",
)
def main(
    quick: bool, json_file: Path | None, check: bool, pairs: int, earlier: tuple[Path, ...]
) -> None:
    """Everything that shows a run, on against off."""
    measured = [pair for path in earlier for pair in json.loads(path.read_text())["pairs"]]
    measured += measure(8 if quick else pairs)
    summary = summarise(measured)
    click.echo(f"{len(measured)} pairs of {BLOCK - 1} steps")
    click.echo(f"off {summary['off_step_ms']:.1f} ms a step, on {summary['on_step_ms']:.1f} ms")
    low, high = summary["cpu on/off interval"]
    click.echo(f"processor time, on / off: {summary['cpu on/off']:.4f} ({low:.4f} to {high:.4f})")
    click.echo(
        f"observing takes {summary['off_observing_ms']:.2f} ms of a processor a step when off, "
        f"{summary['on_observing_ms']:.2f} ms when on"
    )
    found = [
        describe(
            "added, at most", 1 + summary["added"], [1 + x for x in summary["added interval"]]
        ),
        describe("on / off", summary["on/off"], summary["on/off interval"]),
    ]
    if json_file is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n")
    if check and not all(found):
        sys.exit(1)


def describe(name: str, value: float, ends: Sequence[float]) -> bool:
    """Prints a figure beside the bar; whether its interval lies below."""
    low, high = ends
    found = "ok  " if high < BAR else "MISS" if low >= BAR else "OPEN"
    click.echo(f"{found} {name}: {value:.4f} ({low:.4f} to {high:.4f}, bar {BAR})")
    return high < BAR


if __name__ == "__main__":
    main()
