"""From a run's weights files back to one checkpoint, as transformers and others load it.

Each weights file says in its header which checkpoint its operator was loaded from, and which of
that checkpoint's tensors its own replace; see `origin_of`. What no stage holds stays as it was.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from flowengine.operators.hf.checkpoint import INDEX, WEIGHTS, Checkpoint

SHARD_BYTES = 5 * 2**30
"""A shard holds so many bytes, or one tensor."""

KEPT = (".json", ".txt", ".model", ".jinja", ".py", ".md")
"""Files of tokenizers, processors and model cards."""


def export(run_dir: Path, to: Path, *, dtype: torch.dtype | None = None) -> Path:
    """Writes the checkpoint that `run_dir` trained to the new directory `to`; its path.

    dtype: of all floating-point tensors; None keeps the run's. Adapters are merged into their
    weights. The checkpoint's other files (tokenizer, processor, ...) are copied. Raises ValueError
    where no weights file comes from a checkpoint, or several come from different ones.
    """
    if to.exists():
        raise ValueError(f"{to}: exists; name a new directory")
    files = {path: _header(path) for path in sorted((run_dir / "weights").glob("*.safetensors"))}
    files = {path: header for path, header in files.items() if "checkpoint" in header}
    sources = {header["checkpoint"] for header in files.values()}
    if len(sources) != 1:
        raise ValueError(
            f"{run_dir}: its weights come from {sorted(sources) or 'no checkpoint'}; expected one "
            "checkpoint, loaded by operators such as PretrainedVision"
        )
    checkpoint = Checkpoint(sources.pop())
    part = to.with_name(f".{to.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with ExitStack() as stack:
        trained = _Trained(files, stack)
        wanted = dtype or trained.dtype
        _write_shards(part, checkpoint, trained, wanted)
    _copy_rest(checkpoint, part, wanted)
    part.rename(to)
    return to


class _Trained:
    """The tensors of several weights files, by their names in the checkpoint."""

    def __init__(self, files: dict[Path, dict[str, Any]], stack: ExitStack) -> None:
        self._places: dict[str, tuple[Any, str, dict[str, Any] | None]] = {}
        for path, header in files.items():
            file = stack.enter_context(safe_open(path, framework="pt"))
            merges = {merge["weight"]: merge for merge in json.loads(header["merges"])}
            for name, original in json.loads(header["names"]).items():
                kept = header.get(name, name)
                self._places[original] = (file, kept, merges.get(name))
        first = self[next(iter(self._places))]
        self.dtype = first.dtype

    def __contains__(self, original: str) -> bool:
        return original in self._places

    def __getitem__(self, original: str) -> Tensor:
        file, name, merge = self._places[original]
        weight: Tensor = file.get_tensor(name)
        if merge is None:
            return weight
        added: Tensor = file.get_tensor(merge["b"]) @ file.get_tensor(merge["a"])
        return weight + float(merge["scale"]) * added


def _header(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def _write_shards(to: Path, checkpoint: Checkpoint, trained: _Trained, dtype: torch.dtype) -> None:
    shards: dict[str, str] = {}
    plan = list(_plan_shards(checkpoint, dtype))
    for number, names in enumerate(plan, start=1):
        rest = dict(checkpoint.tensors(name for name in names if name not in trained))
        tensors = {name: trained[name] if name in trained else rest[name] for name in names}
        cast = {name: _cast(tensor, dtype).contiguous() for name, tensor in tensors.items()}
        file = WEIGHTS if len(plan) == 1 else f"model-{number:05}-of-{len(plan):05}.safetensors"
        save_file(cast, to / file, metadata={"format": "pt"})
        shards |= dict.fromkeys(names, file)
    if len(plan) > 1:
        text = json.dumps({"metadata": {}, "weight_map": shards}, indent=2)
        (to / INDEX).write_text(text, encoding="utf-8")


def _plan_shards(checkpoint: Checkpoint, dtype: torch.dtype) -> Iterator[list[str]]:
    """The checkpoint's tensors in its own order, cut where a shard is full."""
    names: list[str] = []
    size = 0
    with ExitStack() as stack:
        opened = {
            path: stack.enter_context(safe_open(path, framework="pt"))
            for path in set(checkpoint.files.values())
        }
        for name, path in checkpoint.files.items():
            shape = opened[path].get_slice(name).get_shape()
            bytes_ = torch.Size(shape).numel() * dtype.itemsize
            if names and size + bytes_ > SHARD_BYTES:
                yield names
                names, size = [], 0
            names.append(name)
            size += bytes_
    yield names


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _copy_rest(checkpoint: Checkpoint, to: Path, dtype: torch.dtype) -> None:
    """Everything but weights; the configuration says the dtype that the weights have now."""
    for path in checkpoint.path.iterdir():
        if path.is_file() and path.suffix in KEPT and path.name != INDEX:
            shutil.copyfile(path, to / path.name)
    config = checkpoint.json("config.json")
    _set_dtype(config, str(dtype).removeprefix("torch."))
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _set_dtype(config: dict[str, Any], name: str) -> None:
    """In the configuration and in those of its parts, wherever one says a dtype."""
    for key, value in config.items():
        if isinstance(value, dict):
            _set_dtype(value, name)
        elif key in ("dtype", "torch_dtype"):
            config[key] = name
    if "model_type" in config and "torch_dtype" not in config:
        config["dtype"] = name
