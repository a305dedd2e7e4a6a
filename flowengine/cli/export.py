"""flowengine export: a run's weights as a checkpoint that transformers loads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--to", type=click.Path(path_type=Path), required=True, help="A directory that is not there."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "bfloat16", "float16"]),
    help="Of the weights.  [default: the run's, which keeps every bit]",
)
def export(
    run_dir: Path,
    to: Path,
    dtype: Literal["float32", "float64", "bfloat16", "float16"] | None,
) -> None:
    """Write the checkpoint that the run in RUN_DIR trained, in its original form.

    For graphs of pretrained operators: one directory with the names, configuration and tokenizer
    files of the checkpoint that they were loaded from. Adapters are merged.
    """
    import torch

    from flowengine.operators.hf.export import export as export_run

    try:
        path = export_run(run_dir, to, dtype=getattr(torch, dtype) if dtype else None)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(str(path))
