"""A model of which one process holds a part: the rest of it is never allocated.

The transformers class is built on the meta device, where tensors have shapes and no memory; the
parts of other operators are taken out, and the own parts' weights are read from the checkpoint.
Parameters keep their names in the whole model.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from flowengine.operators.hf.checkpoint import Checkpoint, read_config


@dataclass(frozen=True)
class Part:
    """Where an operator's weights are in the whole model, e.g. ("model.visual",)."""

    own: tuple[str, ...]
    others: tuple[str, ...]


def load_part(path: str, part: Part, *, model_class: Any) -> tuple[Any, dict[str, str]]:
    """The whole model's module without `part.others`, in the checkpoint's dtype; and the
    checkpoint's name of every parameter of it.

    Raises ValueError for a checkpoint that lacks a tensor or has it in another shape.
    """
    checkpoint = Checkpoint(path)
    config = copy.deepcopy(read_config(path))  # A model writes into its own.
    with torch.device("meta"):
        model = model_class.from_config(config)
    for name in part.others:
        parent, _, child = name.rpartition(".")
        delattr(model.get_submodule(parent), child)
    names: dict[str, str] = {}
    for own in part.own:
        names |= _names_in(checkpoint, own, model)
    originals = {original: name for name, original in names.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    weights = {}
    for original, tensor in checkpoint.tensors(originals):
        name = originals[original]
        if tuple(tensor.shape) != shapes[name]:
            raise ValueError(
                f"checkpoint {path}: '{original}' has the shape {tuple(tensor.shape)}, the "
                f"configuration's is {shapes[name]}"
            )
        weights[name] = tensor
    model.load_state_dict(weights, strict=False, assign=True)
    _fill_rest(model)
    return model, names


def _names_in(checkpoint: Checkpoint, own: str, model: Any) -> dict[str, str]:
    """The checkpoint's name of every tensor below `own`; tied ones have none of their own."""
    tied = {name.removeprefix(f"{own}.") for name in _tied(model) if name.startswith(f"{own}.")}
    absent = {name for name in tied if checkpoint.prefix_of(own, [name]) is None}
    wanted = [name for name in model.get_submodule(own).state_dict() if name not in absent]
    prefix = checkpoint.prefix_of(own, wanted) if wanted else ""
    if prefix is None:
        lacking = next((n for n in wanted if checkpoint.prefix_of(own, [n]) is None), wanted[0])
        raise ValueError(
            f"checkpoint {checkpoint.path}: no place holds all tensors of '{own}' (such as "
            f"'{lacking}'); expected a checkpoint of {type(model).__name__} whose tensors "
            "transformers loads without converting them"
        )
    return {f"{own}.{name}": prefix + name for name in wanted}


def _tied(model: Any) -> dict[str, str]:
    """The parameters that are another one under a second name, which comes second here."""
    is_tied = bool(getattr(model.config, "tie_word_embeddings", False))
    return dict(model._tied_weights_keys or {}) if is_tied else {}


def _fill_rest(model: Any) -> None:
    """Ties what is tied, and computes the buffers that no checkpoint holds."""
    present = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, source in _tied(model).items():
        if name in present and source in present:
            one, other = model.get_parameter(name), model.get_parameter(source)
            if not one.is_meta and not torch.equal(one, other):
                raise ValueError(
                    f"the checkpoint has '{name}' and '{source}', which its configuration ties, "
                    "with different values; set tie_word_embeddings to false in config.json"
                )
            module, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(module), leaf, other)
    for module in model.modules():
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device="cpu")
    for parameter in model.parameters():
        assert not parameter.is_meta, "a parameter was not loaded"
        parameter._is_hf_initialized = True
    with torch.no_grad():
        model.initialize_weights()
