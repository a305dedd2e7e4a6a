"""Graphs without training: numbers from a source, through functions, into a sink that tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flowengine import Credits, Graph, Step
from flowengine.api import Context, Operator, Ports, Source

LARGE = 4096
"""Floats in a number's data that are too many for a message."""


@dataclass(frozen=True)
class Number:
    value: int
    data: Tensor


@dataclass(frozen=True)
class Halves(Ports):
    """A number and what is left of it; odd ones have no `even`."""

    even: Number | None
    rest: Number


class Numbers(Source[Number]):
    """Sample i is the number i, `size` times."""

    total: int | None = None
    size: int = 3

    def num_samples(self) -> int | None:
        return self.total

    def read(self, index: int) -> Number:
        return Number(index, torch.full((self.size,), float(index)))


class Gather(Operator):
    """Reports what arrived in each round: [value, sum of the data], in order of arrival."""

    def open(self, context: Context) -> None:
        self._report = context.report
        self._seen: list[Any] = []

    def process(self, number: Number) -> None:
        self._seen.append([number.value, float(number.data.sum())])

    def flush(self) -> None:
        self._report("seen", self._seen)
        self._seen = []


class Add(Operator):
    """Adds `amount`; configuration travels with the operator."""

    amount: int

    def process(self, number: Number) -> Number:
        return Number(number.value + self.amount, number.data + self.amount)


def double(number: Number) -> Number:
    return Number(2 * number.value, 2 * number.data)


def square(number: Number) -> Number:
    return Number(number.value**2, number.data**2)


def same(number: Number) -> Number:
    return number


def only_even(number: Number) -> Number | None:
    return None if number.value % 2 else number


def halve(number: Number) -> Halves:
    even = None if number.value % 2 else Number(number.value // 2, number.data / 2)
    return Halves(even, Number(number.value % 2, number.data % 2))


def total(one: Number, other: Number) -> Number:
    return Number(one.value + other.value, one.data + other.data)


def plain_graph(
    *functions: Operator | Callable[..., Any],
    source: Operator | None = None,
    sink: Operator | Callable[..., Any] | None = None,
    samples: int = 4,
    steps: int | None = 3,
    replicas: int = 1,
    credits: Credits | None = None,
    size: int = 3,
) -> Graph:
    """A source, a chain of functions, a sink."""
    graph = Graph("plain", step=Step(samples=samples), steps=steps)
    stream = graph.add(source or Numbers(size=size), name="source")
    for index, function in enumerate(functions):
        stream = graph.add(function, stream, name=f"f{index}", replicas=replicas, credits=credits)
    graph.add(sink or Gather(), stream, name="sink", credits=credits)
    return graph
