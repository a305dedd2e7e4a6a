"""flowengine profile: what a graph's operators cost on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowengine.cli.planning import FILE
from flowengine.cli.target import load, takes_graph, user_code

if TYPE_CHECKING:
    from flowengine.plan.profile import Profile


@click.command()
@takes_graph
@click.option(
    "-o",
    "--output",
    type=FILE,
    default=Path("profile.parquet"),
    show_default=True,
    help="The file to write, for plan and simulate.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How often to measure every pack.",
)
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
def profile(
    target: str, settings: tuple[str, ...], output: Path, repeats: int, as_json: bool
) -> None:
    """Measure every operator of GRAPH.py alone, over packs of many sizes, and fit what they cost.

    Takes some seconds and all cores for a small graph; nothing else should run meanwhile.
    """
    graph = load(target, settings)
    from flowengine.graph import check
    from flowengine.plan.measure import measure_graph

    with user_code(target.partition(":")[0]):
        check(graph)
        found = measure_graph(graph, repeats=repeats)
    found.write(output)
    if as_json:
        fields = {key: value for key, value in asdict(found).items() if key != "measured"}
        click.echo(json.dumps(fields, indent=2))
        return
    _show(found)
    click.echo(str(output))


def _show(found: Profile) -> None:
    from rich.table import Table

    from flowengine.graph.size import format_bytes
    from flowengine.observe.progress import Screen

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("stage")
    for name in ("forward, us/row", "+ ns/row^2", "backward", "+", "update", "weights", "fit"):
        table.add_column(name, justify="right")
    for name, stage in found.stages.items():
        lines = (stage.forward, stage.backward)
        cells = [f"{v:.3g}" for line in lines for v in (1e6 * line.row, 1e9 * line.square)]
        weights = format_bytes(stage.weights_bytes)
        update = f"{1e3 * stage.update_s:.2f} ms"
        table.add_row(name, *cells, update, weights, f"+-{stage.residual:.0%}")
    screen = Screen(highlight=False)
    screen.print(table)
    for name, known in found.data["lengths"].items():
        spread = ", ".join(f"{q}: {known[q]:.0f}" for q in ("0.5", "0.9", "0.99", "1"))
        screen.print(f"{name} per sample: mean {known['mean']:.1f}; quantiles {spread}")
    for name, count in found.data["stable_samples"].items():
        told = f"stable from {count} samples on" if count else "not stable in what was read"
        screen.print(f"{name} to the objective's cost: {told}")
    slow = ", ".join(f"{each:.2f}" for each in found.slowdown)
    screen.print(f"{found.cores} cores; slowdown with 1, 2, ... processes at work: {slow}")
