"""A checkpoint directory in the Hugging Face layout, read tensor by tensor.

    config.json                   the model's configuration
    model.safetensors             the weights; or, in shards,
    model.safetensors.index.json  which shard holds which tensor

Nothing is fetched: the directory is local, and only safetensors are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Checkpoint:
    """A model on disk. Raises ValueError, naming the path, for what is no such directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / "config.json").is_file():
            raise ValueError(
                f"checkpoint {self.path}: no config.json there; expected a local directory as "
                "save_pretrained writes it (download it first)"
            )

    @cached_property
    def files(self) -> dict[str, Path]:
        """The file of every tensor, by the tensor's name."""
        index = self.path / INDEX
        if index.is_file():
            shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {name: self.path / Path(shard).name for name, shard in shards.items()}
        whole = self.path / WEIGHTS
        if not whole.is_file():
            raise ValueError(
                f"checkpoint {self.path}: neither {WEIGHTS} nor {INDEX} there; expected weights as "
                "safetensors (load and save_pretrained them once with transformers)"
            )
        with safe_open(whole, framework="pt") as file:
            return dict.fromkeys(file.keys(), whole)

    def tensors(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """These tensors, shard by shard; nothing else is read."""
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self.files[name], []).append(name)
        for path, wanted in by_file.items():
            with safe_open(path, framework="pt") as file:
                for name in wanted:
                    yield name, file.get_tensor(name)

    def prefix_of(self, part: str, names: Iterable[str]) -> str | None:
        """What stands in the checkpoint before the names of a part's tensors; None if the part is
        not there.

        A part is found by its tensors' names, for checkpoints of one model differ in what they
        call the part itself: "visual.", "model.visual.", "vision_tower.vision_model.".
        Where several places have such tensors, the one named as the part is taken.
        """
        found: set[str] | None = None
        for name in names:
            ends = {key.removesuffix(name) for key in self.files if _ends_with(key, name)}
            found = ends if found is None else found & ends
        own = part.rpartition(".")[2] + "."
        choices = sorted(found or (), key=lambda prefix: (not prefix.endswith(own), len(prefix)))
        if not choices or (len(choices) > 1 and not choices[0].endswith(own)):
            return None
        return choices[0]

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file of the directory; empty if it is not there."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


@cache
def read_config(path: str) -> Any:
    """The transformers configuration of a checkpoint directory."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(Checkpoint(path).path, local_files_only=True)


def _ends_with(key: str, name: str) -> bool:
    return key == name or key.endswith("." + name)
