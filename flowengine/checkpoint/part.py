"""One stage's part of a checkpoint: its tensors and plain values, with a checksum of each tensor.

    <stage>.safetensors    the tensors
    <stage>.json           {"values": ..., "tensors": {name: {"sha256", "dtype", "shape"}}}

The JSON file is written last and renamed into place: where it is, the tensors are whole.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from flowengine.checkpoint.disk import sync, write_synced
from flowengine.errors import CheckpointError


@dataclass
class Part:
    """What one stage keeps. values: of JSON's types. lasting: the tensors that nobody changes
    before the next optimizer step."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    lasting: frozenset[str] = frozenset()


def write_part(directory: Path, name: str, part: Part) -> None:
    """Writes the part's files and has them on the disk when it returns; OSError if it cannot."""
    tensors_file = directory / f"{name}.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in part.tensors.items()}, tensors_file)
    sync(tensors_file)
    index = {
        "values": part.values,
        "tensors": {
            key: {
                "sha256": checksum(tensor),
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
            }
            for key, tensor in part.tensors.items()
        },
    }
    write_synced(directory / f"{name}.json", json.dumps(index))


def read_part(directory: Path, name: str) -> Part:
    """The part; CheckpointError if it is missing, unreadable, or not what was written."""
    index = read_index(directory, name)
    try:
        tensors = load_file(directory / f"{name}.safetensors")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: {name}.safetensors cannot be read: {error}") from None
    for key, known in index["tensors"].items():
        if key not in tensors or checksum(tensors[key]) != known["sha256"]:
            raise CheckpointError(
                f"{directory}: tensor '{key}' of '{name}' is not what was written (its checksum "
                "differs); use an older checkpoint"
            )
    return Part(tensors, index["values"])


def read_index(directory: Path, name: str) -> dict[str, Any]:
    """The part's JSON file; CheckpointError if it is missing or no JSON."""
    try:
        index: dict[str, Any] = json.loads((directory / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{directory}: {name}.json cannot be read: {error}") from None
    return index


def checksum(tensor: Tensor) -> str:
    """SHA-256 of the tensor's bytes, in row-major order."""
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).hexdigest()
