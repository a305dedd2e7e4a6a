"""flowengine report, compare and trace: what a run that is over has left."""

from __future__ import annotations

import json
from pathlib import Path

import click

from flowengine.cli.steps import STEPS
from flowengine.cli.target import RUN, takes_run


@click.command()
@takes_run
@click.option("--json", "as_json", is_flag=True, help="The report as a JSON object; draws nothing.")
def report(run_dir: Path, as_json: bool) -> None:
    """Draw report.html of the run in directory RUN again, and say where it is."""
    from flowengine.observe.bottleneck import describe_verdict
    from flowengine.observe.page import write_page
    from flowengine.observe.run_files import RunFiles

    files = RunFiles(run_dir)
    if as_json:
        click.echo(json.dumps(files.report, indent=2))
        return
    _, verdict = describe_verdict(files)
    click.echo(f"{files.report['status']}: {files.report['steps']} steps")
    click.echo(f"{verdict.text} {verdict.advice}".rstrip())
    click.echo(str(write_page(run_dir)))


@click.command()
@click.argument("one", type=RUN, metavar="RUN")
@click.argument("other", type=RUN, metavar="RUN")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page, *.html, instead of a table.",
)
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
def compare(one: Path, other: Path, output: Path | None, as_json: bool) -> None:
    """Put two runs side by side: speed, loss, results, where the time went, and what differs in
    what they were asked for."""
    from rich.table import Table

    from flowengine.observe.compare import (
        compare_runs,
        figure_rows,
        make_comparison_page,
        setting_rows,
    )
    from flowengine.observe.progress import Screen
    from flowengine.observe.run_files import RunFiles

    runs = RunFiles(one), RunFiles(other)
    if output is not None:
        output.write_text(make_comparison_page(*runs), encoding="utf-8")
        click.echo(str(output))
        return
    compared = compare_runs(*runs)
    if as_json:
        click.echo(json.dumps(compared, indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    for name in (one.name, other.name, "second / first"):
        table.add_column(name, justify="right", overflow="fold")
    for row in figure_rows(compared):
        table.add_row(*row)
    console = Screen(highlight=False)
    console.print(table)
    for path, *values in setting_rows(compared):
        console.print(path, markup=False, soft_wrap=True)
        for run_dir, value in zip((one, other), values, strict=True):
            console.print(f"  {run_dir.name}: {value}", markup=False, soft_wrap=True)


@click.command()
@takes_run
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.  [default: trace.json in RUN]",
)
@click.option("--steps", type=STEPS, default=(), help="Of these steps alone, as in 10-12,50.")
@click.option("--json", "as_json", is_flag=True, help="On stdout, into no file.")
def trace(run_dir: Path, output: Path | None, steps: tuple[range, ...], as_json: bool) -> None:
    """Write what the run in directory RUN did when, for https://ui.perfetto.dev.

    A track per stage replica, an arrow per sample; and the operators and kernels of the steps that
    `flowengine run --torch-profiler` was on for.
    """
    if as_json and output is not None:
        raise click.UsageError("--json and --output exclude each other")
    from flowengine.observe.run_files import RunFiles
    from flowengine.observe.trace import make_trace

    made = json.dumps(make_trace(RunFiles(run_dir), steps=steps))
    if as_json:
        click.echo(made)
        return
    path = output or run_dir / "trace.json"
    path.write_text(made, encoding="utf-8")
    click.echo(str(path))
