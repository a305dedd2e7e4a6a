"""flowengine replay: runs single samples again, alone, in one process."""

from __future__ import annotations

import json
import pdb
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowengine.cli.target import load, takes_graph, user_code

if TYPE_CHECKING:
    from flowengine.errors import FlowError
    from flowengine.runtime.events import Event

SHOWN = 16


def _ids(_: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    """The ids in `4,7,-1`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected ids, as in 4,7", param=option) from None


@click.command()
@takes_graph
@click.option(
    "--samples",
    required=True,
    metavar="ID,...",
    callback=_ids,
    help="Ids of samples of one step; held-out ones are negative: --samples=-3.",
)
@click.option(
    "--behind",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A checkpoint, or a run directory, whose weights are used.  [default: new weights]",
)
@click.option("--pdb", "debug", is_flag=True, help="Where they fail, a debugger at the place.")
@click.option("--json", "as_json", is_flag=True, help="What came of it as JSON.")
def replay(
    target: str,
    settings: tuple[str, ...],
    samples: tuple[int, ...],
    behind: Path | None,
    debug: bool,
    as_json: bool,
) -> None:
    """Run samples of the graph in GRAPH.py again, alone, all in this process.

    breakpoint() in an operator stops there. The weights are those of the checkpoint, which may be
    some steps older than those that a sample failed with.
    """
    graph = load(target, settings)
    from flowengine import launch
    from flowengine.checkpoint import newest_checkpoint
    from flowengine.errors import RunError
    from flowengine.runtime.events import StepDone

    if behind is not None and not (behind / "manifest.json").is_file():
        behind = newest_checkpoint(behind)
    losses = []

    def observe(event: Event) -> None:
        if isinstance(event, StepDone):
            losses.append(event.loss)

    try:
        with user_code(target.partition(":")[0]):
            found = launch.replay(graph, samples, behind=behind, observe=observe)
    except RunError as error:
        if debug and error.__cause__ is not None:
            click.echo(f"error: {error}", err=True)
            pdb.post_mortem(error.__cause__.__traceback__)
        raise
    if as_json:
        told = {
            "samples": samples,
            "step": found.step,
            "checkpoint": str(found.checkpoint) if found.checkpoint else None,
            "loss": losses[0] if losses else None,
        }
        click.echo(json.dumps(told, indent=2))
        return
    weights = f"the weights of {found.checkpoint}" if found.checkpoint else "new weights"
    loss = f", loss {losses[0]:.6f}" if losses else ""
    click.echo(f"samples {', '.join(map(str, samples))} of step {found.step}: no error{loss}")
    click.echo(f"with {weights}")


def replay_command(
    error: FlowError, target: str, settings: tuple[str, ...], run_dir: Path
) -> str | None:
    """The command that runs the samples of this error again; None if it is about none."""
    if not error.samples:
        return None
    ids = ",".join(str(sample) for sample in error.samples[:SHOWN])
    words = ["flowengine", "replay", target, *settings, f"--samples={ids}"]
    return shlex.join([*words, "--behind", str(run_dir), "--pdb"])
