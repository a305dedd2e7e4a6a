"""flowengine lineage: what a run did with a sample, or in a step."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from flowengine.observe.lineage import Entry


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--sample", type=int, help="Id of a sample; held-out ones are negative.")
@click.option("--step", type=int, help="Number of a training step, from 0 on.")
@click.option("--json", "as_json", is_flag=True, help="The catalogue's rows as JSON objects.")
def lineage(run_dir: Path, sample: int | None, step: int | None, as_json: bool) -> None:
    """Say what happened to a sample, or which samples are in a step.

    Reads the catalogue in RUN_DIR: what was in the pool. Samples whose values were all small enough
    to travel in their rows are not in it.
    """
    if (sample is None) == (step is None):
        raise click.UsageError("give either --sample or --step")
    from flowengine.observe.lineage import entries_of_sample, entries_of_step

    try:
        if sample is not None:
            found, what = entries_of_sample(run_dir, sample), f"sample {sample}"
        else:
            assert step is not None
            found, what = entries_of_step(run_dir, step), f"step {step}"
    except FileNotFoundError as error:
        raise click.BadParameter(str(error), param_hint="RUN_DIR") from None
    if not found:
        raise click.ClickException(f"{what} is not in the catalogue of {run_dir}")
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in found], indent=2))
    else:
        click.echo("\n".join(describe(what, found)))


def describe(what: str, entries: list[Entry]) -> list[str]:
    """A heading, and a line per entry."""
    samples = {entry.sample for entry in entries}
    packs = {(entry.held_out, entry.step, entry.pack) for entry in entries}
    lines = [f"{what}: {len(entries)} entries of {len(samples)} samples in {len(packs)} packs"]
    for entry in entries:
        made = "no weights" if entry.version is None else f"version {entry.version}"
        kind = "held out after step" if entry.held_out else "step"
        lines.append(
            f"  {kind} {entry.step} pack {entry.pack} sample {entry.sample}: "
            f"{entry.stage}[{entry.replica}] made {entry.dtype}{list(entry.shape)} with {made} "
            f"at {entry.made_s:.3f} s, {entry.size_bytes} bytes at {entry.address:#x} "
            f"({entry.tier}); {entry.state} at {entry.returned_s:.3f} s"
        )
    return lines
