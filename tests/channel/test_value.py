"""Values as trees, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from flowengine.api import Sample
from flowengine.channel import Kind, flatten, payloads_of, restore, weigh
from flowengine.channel.message import FrameReader, encode
from flowengine.pool import Payload, inline_payload, inline_tensor


@dataclass(frozen=True)
class Box:
    corners: Tensor
    label: str


@dataclass(frozen=True)
class Scene:
    boxes: list[Box]
    best: Box | None
    by_name: Mapping[str, Box]
    pair: tuple[Box, Box]
    any_number: tuple[Box, ...] = ()
    other: dict[str, Any] = field(default_factory=dict)


class Point(NamedTuple):
    x: int
    y: int


def place(tensor: Tensor, was_array: bool) -> Payload:
    """Every tensor inline."""
    payload = inline_payload(tensor)
    return Payload(payload.data, 0, 0, payload.dtype, payload.shape, was_array)


def travel(value: Any) -> Any:
    """The value's tree behind the wire."""
    ((_, tree),) = FrameReader().feed(encode((Kind.NOTICE, flatten(value, place))))
    return tree


def send(value: Any, kind: Any = None) -> Any:
    """The value as the other side has it."""
    return restore(kind or type(value), travel(value), inline_tensor)


def test_a_sample_comes_back_as_it_was() -> None:
    """A sample arrives as a sample, its tensors, media and notes equal."""
    sample = Sample(
        tokens=torch.arange(5),
        labels=torch.tensor([-100, 1, 2, 3, 4]),
        media={"image": torch.rand(4, 4, 3), "sound": torch.rand(9).to(torch.bfloat16)},
        note={"kind": "count", "index": 3, "weight": 0.5},
    )
    found = send(sample)
    assert type(found) is Sample
    assert torch.equal(found.tokens, sample.tokens)
    assert torch.equal(found.labels, sample.labels)
    assert found.note == sample.note
    assert found.media.keys() == sample.media.keys()
    for name in sample.media:
        assert len(found.items(name)) == len(sample.items(name))
        for ours, tensor in zip(found.items(name), sample.items(name), strict=True):
            assert ours.dtype == tensor.dtype
            assert torch.equal(ours, tensor)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.arange(6.0)[::-2],
        np.full((), 2.5, dtype=np.float32),
        np.zeros((0, 3), dtype=np.uint8),
        np.array([True, False]),
    ],
    ids=["plain", "turned", "reversed", "0-d", "empty", "bool"],
)
def test_an_array_comes_back_as_an_array(array: np.ndarray[Any, Any]) -> None:
    """NumPy arrays of any layout keep values, dtype and shape, and are arrays again."""
    found = send({"array": array})["array"]
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert (found == array).all()


def test_a_read_only_array_travels() -> None:
    """An array that must not be written to, as many libraries give, travels without a warning."""
    array = np.arange(4)
    array.setflags(write=False)
    assert (send([array])[0] == array).all()


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.str_("red"), "red"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_numpy_number_travels_as_a_plain_one(value: Any, plain: Any) -> None:
    """A NumPy scalar, also one that passes for a Python number, arrives as a Python value."""
    found = send([value])[0]
    assert found == plain
    assert type(found) is type(plain)


def test_dataclasses_within_a_dataclass_come_back() -> None:
    """Where a field's type says so, a dataclass within a value is itself again."""
    box = Box(torch.arange(4), "card")
    scene = Scene([box, box], None, {"a": box}, (box, box), (box,) * 3, {"n": [1, (2, None)]})
    found = send(scene)
    assert found.best is None
    assert found.other == {"n": [1, (2, None)]}
    every = [*found.boxes, found.by_name["a"], *found.pair, *found.any_number]
    assert len(every) == 8
    for each in every:
        assert type(each) is Box
        assert each.label == "card"
        assert torch.equal(each.corners, box.corners)
    assert type(send(Scene([], box, {}, (box, box))).best) is Box


@pytest.mark.parametrize(
    "value", [None, True, 3, -0.5, "text", b"raw", [1, [2, []]], (1, (2, ())), {"a": {"b": (1,)}}]
)
def test_plain_values_come_back(value: Any) -> None:
    """What is not a dataclass arrives as the same lists, tuples and dicts."""
    found = send(value)
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({1, 2}, "a set does not travel"),
        (Point(1, 2), "a Point does not travel"),
        (object(), "a object does not travel"),
        (Box, "a type does not travel"),
        ({"deep": [Box(torch.zeros(1), label={1})]}, "a set does not travel"),  # type: ignore[arg-type]
        (np.array(["a"], dtype=object), "an array of object does not travel"),
        (np.array(["text"]), "an array of <U4 does not travel"),
    ],
    ids=["set", "named tuple", "object", "class", "deep", "objects", "strings"],
)
def test_what_does_not_travel_is_named(value: Any, name: str) -> None:
    """A value of another type is refused with its name and with what a value may be."""
    with pytest.raises(TypeError, match=rf"{name}; a value is a dataclass of tensors, arrays"):
        flatten(value, place)


def test_each_tensor_is_placed_in_order() -> None:
    """`place` sees the tensors in the order of the fields, and whether they were arrays."""
    seen: list[tuple[int, bool]] = []
    value = {"a": torch.zeros(1), "b": [np.zeros(2), (torch.zeros(3),)]}
    flatten(value, lambda tensor, was_array: seen.append((len(tensor), was_array)))
    assert seen == [(1, False), (2, True), (3, False)]


def test_payloads_in_the_pool_are_found() -> None:
    """Of all payloads in a tree, those in the pool are listed, in order; they are the leases."""
    first = Payload(None, 64, 0, "float32", (1,))
    second = Payload(None, 128, 0, "float32", (1,))
    inline = inline_payload(torch.zeros(1))
    assert payloads_of({"a": [first, inline], "b": ({"c": second}, None)}) == [first, second]


def test_a_tree_weighs_what_it_holds() -> None:
    """The weight of a tree, which credits bound, covers its strings, bytes and inline payloads,
    and no payload in the pool."""
    tree = {"text": "x" * 1000, "raw": [b"y" * 500, inline_payload(torch.zeros(100))]}
    pooled = Payload(None, 64, 0, "float32", (10**6,))
    assert 1900 <= weigh(tree) <= 2000
    assert weigh([1, 2.5, None, True]) >= 4
    assert weigh({"a": pooled}) < 100
    assert weigh("\N{SNOWMAN}" * 100) == 300
