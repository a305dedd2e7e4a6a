"""flowengine inspect: what is in a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def inspect(path: Path, as_json: bool) -> None:
    """Print what is in a checkpoint, once all of its tensors are found to be what was written.

    PATH is a checkpoint, or a run directory whose newest one is meant.
    """
    found = _read(path)
    click.echo(json.dumps(found, indent=2) if as_json else _table(found))


def _read(path: Path) -> dict[str, Any]:
    from flowengine.checkpoint import find_checkpoint, open_checkpoint, read_part

    directory = find_checkpoint(path)
    manifest = open_checkpoint(directory)
    parts = {}
    for name in manifest.parts:
        tensors = read_part(directory, name).tensors
        weights = [tensor for key, tensor in tensors.items() if key.startswith("module/")]
        parts[name] = {
            "tensors": len(tensors),
            "weights": sum(tensor.numel() for tensor in weights),
            "bytes": sum(tensor.nbytes for tensor in tensors.values()),
        }
    return {
        "path": str(directory),
        "graph": manifest.graph,
        "step": manifest.step,
        "last_loss": manifest.losses[-1] if manifest.losses else None,
        "machine": manifest.machine,
        "description": manifest.description,
        "dead_letters": manifest.dead_letters,
        "parts": parts,
    }


def _table(found: dict[str, Any]) -> str:
    lines = [f"{found['path']}: graph '{found['graph']}' after {found['step']} steps"]
    if found["last_loss"] is not None:
        lines.append(f"loss of the last step: {found['last_loss']:.4f}")
    lines.append("machine: " + ", ".join(f"{k} {v}" for k, v in found["machine"].items()))
    for name, stage in found["description"]["stages"].items():
        lines.append(f"stage '{name}': {stage['operator']}")
    for name, part in found["parts"].items():
        lines.append(
            f"part '{name}': {part['weights']:,} weights, {part['tensors']} tensors, "
            f"{part['bytes'] / 2**20:.1f} MiB, every checksum right"
        )
    lines += [f"left out: sample {d['sample']}: {d['reason']}" for d in found["dead_letters"]]
    return "\n".join(lines)
