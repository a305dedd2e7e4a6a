"""Ports are read from signatures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

import pytest

from flowengine.api import (
    Answer,
    Features,
    Gradients,
    Joined,
    Objective,
    Operator,
    Outcome,
    Pack,
    Packer,
    Ports,
    Sample,
    Source,
)
from flowengine.api.trainable import Encoder
from flowengine.errors import GraphError
from flowengine.graph.ports import Signature, fits, read_signature, type_name

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass(frozen=True)
class Split(Ports):
    left: Sample | None
    right: int


def one(sample: Sample) -> Pack:
    raise NotImplementedError


def two(sample: Sample, features: Features) -> Pack | None:
    raise NotImplementedError


def old_style(sample: Sample) -> Optional[Pack]:  # noqa: UP045
    raise NotImplementedError


def several(sample: Sample) -> Split:
    raise NotImplementedError


def several_or_none(sample: Sample) -> Split | None:
    raise NotImplementedError


def sink(sample: Sample) -> None:
    raise NotImplementedError


def only_for_typing(value: Decimal) -> None:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "inputs", "outputs"),
    [
        (one, {"sample": Sample}, {"out": Pack}),
        (two, {"sample": Sample, "features": Features}, {"out": Pack}),
        (old_style, {"sample": Sample}, {"out": Pack}),
        (several, {"sample": Sample}, {"left": Sample, "right": int}),
        (several_or_none, {"sample": Sample}, {"left": Sample, "right": int}),
        (sink, {"sample": Sample}, {}),
    ],
)
def test_ports_of_a_function(
    function: Callable[..., Any], inputs: dict[str, type], outputs: dict[str, type]
) -> None:
    """Parameters are input ports; the result is port "out", or the fields of Ports, or none."""
    assert read_signature(function) == Signature(inputs, outputs)


class Numbers(Source[int]):
    def read(self, index: int) -> int:
        return index


class Double(Operator):
    by: int = 2

    def process(self, number: int) -> int:
        return self.by * number


def test_ports_of_operators() -> None:
    """An operator's ports are those of process, a source's is what read gives."""
    assert read_signature(Numbers()) == Signature({}, {"out": int})
    assert read_signature(Double()) == Signature({"number": int}, {"out": int})


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs"),
    [
        (Packer, {"members": Joined}, {"out": Pack}),
        (Encoder, {"sample": Sample}, {"out": Features}),
        (Objective, {"pack": Pack}, {"gradients": Gradients, "answers": Answer}),
    ],
)
def test_ports_of_the_engines_kinds(
    kind: type[Any], inputs: dict[str, type], outputs: dict[str, type]
) -> None:
    """Packers, encoders and objectives have fixed ports."""
    assert read_signature(kind.process) == Signature(inputs, outputs)


def test_type_that_is_not_imported() -> None:
    """An annotation that exists for the type checker alone is refused by its name."""
    with pytest.raises(GraphError, match="names 'Decimal', which is not there when the graph is"):
        read_signature(only_for_typing)


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        (Sample, Sample, True),
        (Sample, Features, False),
        (bool, int, True),
        (int, bool, False),
        (Sample, object, True),
        (Sample, Any, True),
        (Sample, Sample | Features, True),
        (Pack, Union[Sample, Features], False),  # noqa: UP007
        (list[int], list[int], True),
        (list[int], list[str], False),
    ],
)
def test_which_types_fit(given: Any, wanted: Any, expected: bool) -> None:
    """A type fits itself, its bases, a union it is in, object and Any."""
    assert fits(given, wanted) is expected


def test_type_names() -> None:
    """Types are shown as they are written."""
    assert type_name(Outcome) == "Outcome"
    assert type_name(list[int]) == "list[int]"
    assert type_name(Sample | None) == "flowengine.api.values.Sample | None"
