"""flowengine verify: holds a graph's loss and gradients against those of the plain model."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from flowengine.cli.exits import FAILED
from flowengine.cli.target import load, takes_graph, user_code
from flowengine.nursery import open_nursery

if TYPE_CHECKING:
    from flowengine.testing.verify import Comparison


@click.command()
@takes_graph
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--runtime", type=click.Choice(["local", "inline"]), default="local", show_default=True
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    help="Compute in this one.  [default: the graph's]",
)
@click.option(
    "--tolerance",
    type=float,
    help="The largest relative difference.  [default: 1e-5 in float32, 1e-10 in float64]",
)
@click.option("--json", "as_json", is_flag=True, help="All differences as a JSON object.")
def verify(
    target: str,
    settings: tuple[str, ...],
    steps: int,
    runtime: Literal["local", "inline"],
    dtype: Literal["float32", "float64"] | None,
    tolerance: float | None,
    as_json: bool,
) -> None:
    """Compare the first steps of the graph in GRAPH.py with the plain model on the same samples.

    Prints the largest relative differences of the loss and of every parameter's gradient; exits
    with 1 if one is beyond the tolerance. The plain model is one process, one sample at a time; for
    a pretrained model it is the transformers class itself.
    """
    if runtime == "local":
        open_nursery()
    graph = load(target, settings)
    graph.dtype = dtype or graph.dtype
    from flowengine.testing.verify import verify as verify_graph

    with tempfile.TemporaryDirectory() as directory, user_code(target.partition(":")[0]):
        found = verify_graph(
            graph, run_dir=Path(directory), steps=steps, runtime=runtime, tolerance=tolerance
        )
    if as_json:
        from flowengine.observe.event_json import dump_json

        click.echo(dump_json({**asdict(found), "agrees": found.agrees}, indent=2))
    else:
        click.echo(describe(found))
    if not found.agrees:
        raise click.exceptions.Exit(FAILED)


def describe(found: Comparison) -> str:
    """The comparison as a table, stage by stage, the largest differences first."""
    lines = [f"against {found.against}, {len(found.losses)} step(s)"]
    lines.append(f"{found.loss_difference:9.1e}  loss")
    for stage, named in found.differences.items():
        ordered = sorted(named.items(), key=lambda pair: (-pair[1], pair[0]))
        lines += [f"{difference:9.1e}  {stage}  {name}" for name, difference in ordered]
    verdict = "ok" if found.agrees else "differs"
    lines.append(
        f"{verdict}: loss by {found.loss_difference:.1e}, gradients by "
        f"{found.gradient_difference:.1e} at most; tolerance {found.tolerance:.0e}"
    )
    return "\n".join(lines)
