"""Values and trees: a value's tensors are taken out to travel as payloads, and put back in.

A tree is None, bool, int, float, str, bytes, list, tuple or dict, with payloads at its leaves. A
dataclass is the dict of its fields; its type is known from the edge, not from the message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowengine.pool import Payload


def flatten(value: Any, place: Callable[[Tensor, bool], Any]) -> Any:
    """The tree of `value`; `place(tensor, was_array)` stands in for each tensor.

    TypeError for what is neither a dataclass nor part of a tree.
    """
    if isinstance(value, Tensor):
        return place(value, False)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, np.ndarray):
        return place(torch.from_numpy(np.ascontiguousarray(value)), True)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: flatten(item, place) for key, item in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(flatten(item, place) for item in value)
    if isinstance(value, list):
        return [flatten(item, place) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: flatten(getattr(value, field.name), place) for field in fields}
    raise TypeError(
        f"a {type(value).__name__} does not travel; a value is a dataclass of tensors, arrays, "
        "numbers, strings, and lists, tuples or dicts of them"
    )


def restore(kind: Any, tree: Any, load: Callable[[Payload], Tensor]) -> Any:
    """The value of type `kind` that this tree was made from."""
    filled = _fill(tree, load)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return kind(**filled)
    return filled


def payloads_of(tree: Any) -> list[Payload]:
    """The payloads in a tree that lie in the pool, in order."""
    if isinstance(tree, Payload):
        return [tree] if tree.data is None else []
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [payload for item in tree for payload in payloads_of(item)]
    return []


def _fill(tree: Any, load: Callable[[Payload], Tensor]) -> Any:
    if isinstance(tree, Payload):
        tensor = load(tree)
        return tensor.numpy() if tree.array else tensor
    if isinstance(tree, dict):
        return {key: _fill(item, load) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_fill(item, load) for item in tree)
    if isinstance(tree, list):
        return [_fill(item, load) for item in tree]
    return tree
