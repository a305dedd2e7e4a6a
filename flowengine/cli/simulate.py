"""flowengine simulate: a graph's run before it is paid for."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowengine.cli.planning import FILE, read_setting, takes_costs
from flowengine.cli.target import takes_graph

if TYPE_CHECKING:
    from flowengine.plan import Figures, Flow, Setting


@click.command()
@takes_graph
@click.option("--devices", help="COUNTxDEVICE, e.g. 64xH200.  [default: the plan's]")
@click.option("--plan", "plan_file", type=FILE, help="A plan; without it the best one is made.")
@click.option(
    "--without",
    multiple=True,
    type=click.Choice(["pool", "allocator", "scheduler"]),
    help="Leave a part out: hand-over a step at a time, devices by FLOPs in one layout, samples "
    "packed as they come.",
)
@click.option(
    "--against",
    multiple=True,
    type=click.Choice(["monolithic", "synchronous", "bound", "all"]),
    help="The same samples in one layout for all stages, in separate stages that wait for each "
    "step's end, and through the objective alone.",
)
@click.option("--trace", type=FILE, help="Write a trace for https://ui.perfetto.dev.")
@click.option("--svg", type=FILE, help="Draw a few steps.")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Leave the files of a run, for report, compare and trace.",
)
@takes_costs
def simulate(
    target: str,
    settings: tuple[str, ...],
    devices: str | None,
    plan_file: Path | None,
    without: tuple[str, ...],
    against: tuple[str, ...],
    trace: Path | None,
    svg: Path | None,
    run_dir: Path | None,
    profile_file: Path | None,
    memory: str | None,
    steps: int,
    as_json: bool,
) -> None:
    """Simulate the run of GRAPH.py under a plan, deterministically, at any scale.

    Prints time per step, rate, MFU and what every stage waits for.
    """
    from flowengine.plan import (
        BASELINES,
        PARTS,
        check_plan,
        make_plan,
        read_plan,
        simulate_baseline,
        simulate_without,
    )

    given = read_plan(plan_file) if plan_file is not None else None
    if devices is None and given is None:
        raise click.UsageError("name --devices COUNTxDEVICE or a --plan")
    setting = read_setting(
        target,
        settings,
        devices=devices or (given.devices if given else ""),
        profile_file=profile_file,
        memory=memory,
        steps=steps,
    )
    given = given or make_plan(setting)
    check_plan(given, setting.graph)
    left_out = [part for part in PARTS if part in without]
    figures, flow = simulate_without(setting, layouts=given.layouts, without=left_out)
    found = {"flow": figures}
    for baseline in BASELINES:
        if baseline in against or "all" in against:
            found[baseline] = simulate_baseline(setting, baseline)[0]
    if trace or svg or run_dir:
        _leave_files(setting, flow, run_dir=run_dir, trace=trace, svg=svg)
    if as_json:
        click.echo(json.dumps({name: each.to_json() for name, each in found.items()}, indent=2))
        return
    _show(found)


def _show(found: dict[str, Figures]) -> None:
    from rich.table import Table

    from flowengine.observe.progress import Screen

    screen = Screen(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for name in ("devices", "s a step", "samples/s", "tokens/s/device", "MFU"):
        table.add_column(name, justify="right")
    for name, each in found.items():
        table.add_row(
            name,
            str(each.devices),
            f"{each.step_s:.3g}",
            f"{each.samples_per_s:,.1f}",
            f"{each.tokens_per_s_per_device:,.0f}",
            f"{each.mfu:.1%}" if each.mfu is not None else "-",
        )
    screen.print(table)
    for stage, causes in found["flow"].bubbles.items():
        shown = sorted(causes.items(), key=lambda item: (item[0] != "busy", -item[1]))
        text = ", ".join(f"{cause} {share:.0%}" for cause, share in shown if share >= 0.01)
        screen.print(f"{stage}: {text or 'next to nothing'}")


def _leave_files(
    setting: Setting, flow: Flow, *, run_dir: Path | None, trace: Path | None, svg: Path | None
) -> None:
    from flowengine import launch
    from flowengine.api import Packer
    from flowengine.observe.page import write_page
    from flowengine.observe.page_charts import draw_timeline
    from flowengine.observe.palette import plain_colours
    from flowengine.observe.record import Recorder
    from flowengine.observe.run_files import RunFiles
    from flowengine.observe.trace import make_trace
    from flowengine.plan.tell import simulated_graph, tell
    from flowengine.plan.work import stage_of

    graph = simulated_graph(setting.graph, flow)
    with _directory(run_dir) as directory:
        if run_dir is not None:
            try:
                launch.make_run_dir(graph, run_dir)
            except OSError as error:
                raise click.BadParameter(str(error), param_hint="--run-dir") from None
        max_tokens = stage_of(graph, Packer).what.max_tokens  # type: ignore[union-attr]
        with Recorder(graph, run_dir=directory, command=sys.argv) as recorder:
            tell(flow, graph, max_tokens=max_tokens, run_dir=directory, observe=recorder)
        files = RunFiles(directory)
        if run_dir is not None:
            click.echo(str(write_page(directory)), err=True)
        if trace is not None:
            trace.write_text(json.dumps(make_trace(files)), encoding="utf-8")
            click.echo(str(trace), err=True)
        if svg is not None:
            drawn, end, _ = draw_timeline(files).partition("</svg>")
            svg.write_text(plain_colours(drawn + end), encoding="utf-8")
            click.echo(str(svg), err=True)


@contextmanager
def _directory(run_dir: Path | None) -> Iterator[Path]:
    """The run directory, or one that is thrown away."""
    if run_dir is not None:
        yield run_dir
        return
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)
