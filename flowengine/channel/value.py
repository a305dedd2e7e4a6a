"""Values and trees: a value's tensors are taken out to travel as payloads, and put back in.

A tree is None, bool, int, float, str, bytes, list, tuple or dict, with payloads at its leaves. A
dataclass is the dict of its fields; its type is known from the edge, and from the types of the
fields that it stands in, not from the message.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowengine.pool import Payload

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""Types whose values are trees as they are."""


def flatten(value: Any, place: Callable[[Tensor, bool], Any]) -> Any:
    """The tree of `value`; `place(tensor, was_array)` stands in for each tensor.

    TypeError for what is neither a dataclass nor part of a tree.
    """
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    names = _field_names(kind)
    if names is not None:
        return {name: flatten(getattr(value, name), place) for name in names}
    if isinstance(value, Tensor):
        return place(value, False)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return place(_tensor_of(value), True)
    if isinstance(value, np.generic):
        return flatten(value.item(), place)
    if isinstance(value, int | float | str | bytes):  # Of a class of its own, as an IntEnum.
        return value
    if isinstance(value, dict):
        return {key: flatten(item, place) for key, item in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(flatten(item, place) for item in value)
    if isinstance(value, list):
        return [flatten(item, place) for item in value]
    array = isinstance(value, np.ndarray)
    name = f"n array of {value.dtype}" if array else f" {type(value).__name__}"
    raise TypeError(
        f"a{name} does not travel; a value is a dataclass of tensors, arrays, "
        "numbers, strings, and lists, tuples or dicts of them"
    )


def restore(kind: Any, tree: Any, load: Callable[[Payload], Tensor]) -> Any:
    """The value of type `kind` that this tree was made from; None for a type that nobody knows."""
    if isinstance(tree, Payload):
        tensor = load(tree)
        return tensor.numpy() if tree.array else tensor
    if isinstance(tree, dict):
        found = _dataclass_of(kind, tree)
        if found is not None:
            kinds = _field_types(found)
            return found(
                **{
                    name: restore(kinds.get(name), tree[name], load)
                    for name in _field_names(found) or ()
                }
            )
        return {key: restore(_item_type(kind, -1), item, load) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return tuple(restore(_item_type(kind, i), item, load) for i, item in enumerate(tree))
    if isinstance(tree, list):
        return [restore(_item_type(kind, 0), item, load) for item in tree]
    return tree


def weigh(tree: Any) -> int:
    """The bytes that a tree takes in a message, about; payloads in the pool count as a number."""
    if isinstance(tree, dict):
        return sum(weigh(key) + weigh(item) for key, item in tree.items())
    if isinstance(tree, list | tuple):
        return sum(weigh(item) for item in tree)
    if isinstance(tree, str):
        return len(tree.encode())
    data = tree.data if isinstance(tree, Payload) else tree
    return len(data) if isinstance(data, bytes) else 8


def payloads_of(tree: Any) -> list[Payload]:
    """The payloads in a tree that lie in the pool, in order."""
    if isinstance(tree, Payload):
        return [tree] if tree.data is None else []
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [payload for item in tree for payload in payloads_of(item)]
    return []


def _tensor_of(array: np.ndarray[Any, Any]) -> Tensor:
    plain = array.dtype.newbyteorder("=")
    usable = array.flags.writeable and array.dtype == plain and min(array.strides, default=0) >= 0
    return torch.from_numpy(array if usable else array.astype(plain, order="C"))


@cache
def _field_names(kind: Any) -> tuple[str, ...] | None:
    """A dataclass's fields, in order; None for what is no dataclass."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def _options(kind: Any) -> tuple[Any, ...]:
    """The types that a union allows; a type that is no union is the only one."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


@cache
def _dataclasses(kind: Any) -> tuple[Any, ...]:
    """The dataclasses that `kind` allows."""
    return tuple(k for k in _options(kind) if isinstance(k, type) and dataclasses.is_dataclass(k))


def _dataclass_of(kind: Any, tree: dict[Any, Any]) -> Any:
    """Of the dataclasses that `kind` allows, the one with these fields; the only one, if so."""
    options = _dataclasses(kind)
    if len(options) == 1:
        return options[0]
    names = set(tree)
    return next((option for option in options if set(_field_names(option) or ()) == names), None)


@cache
def _item_type(kind: Any, index: int) -> Any:
    """The type of item `index` of a list, tuple or dict of type `kind`; None if it does not say."""
    for option in _options(kind):
        items = typing.get_args(option)
        if items:
            return items[index] if index < len(items) and items[index] is not ... else items[0]
    return None


@cache
def _field_types(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except NameError:  # A name that only type checkers import; then no field is a dataclass.
        return {}
