"""flowengine plan: which stage gets which devices."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowengine.cli.planning import FILE, read_setting, takes_costs
from flowengine.cli.target import takes_graph

if TYPE_CHECKING:
    from flowengine.plan import Plan


@click.command()
@takes_graph
@click.option("--devices", required=True, help="COUNTxDEVICE, e.g. 64xH200; Nxcpu here.")
@click.option("-o", "--output", type=FILE, help="Write the plan, for simulate and run --plan.")
@takes_costs
def plan(
    target: str,
    settings: tuple[str, ...],
    devices: str,
    output: Path | None,
    profile_file: Path | None,
    memory: str | None,
    steps: int,
    as_json: bool,
) -> None:
    """Choose replicas, tensor and pipeline parallelism for every stage of GRAPH.py.

    The choice has the highest rate of the slowest edge, then the least mismatch, then the fewest
    devices; it is exact among the layouts that fit the devices' memory. The prediction is a
    simulation's.
    """
    from flowengine.plan import make_plan

    setting = read_setting(
        target, settings, devices=devices, profile_file=profile_file, memory=memory, steps=steps
    )
    found = make_plan(setting)
    if output is not None:
        found.write(output)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    _show(found, devices=setting.devices)
    if output is not None:
        click.echo(str(output))


def _show(plan: Plan, *, devices: int) -> None:
    from rich.table import Table

    from flowengine.graph.size import format_bytes
    from flowengine.observe.progress import Screen

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("stage")
    table.add_column("layout")
    for name in ("devices", "memory each", "rows/sample", "could serve"):
        table.add_column(name, justify="right")
    for name, stage in plan.stages.items():
        table.add_row(
            name,
            str(stage.parallel),
            str(stage.devices),
            format_bytes(int(stage.memory_bytes)),
            f"{stage.demand:,.0f}",
            f"{stage.rate:,.1f} samples/s",
        )
    screen = Screen(highlight=False)
    screen.print(table)
    told = plan.predicted
    used = sum(stage.devices for stage in plan.stages.values())
    mfu = f", MFU {told.mfu:.1%}" if told.mfu is not None else ""
    screen.print(
        f"{used} of {devices} devices; predicted {told.samples_per_s:,.1f} samples/s, "
        f"{told.step_s:.3g} s a step{mfu}; the bottleneck is {told.bottleneck}"
    )
