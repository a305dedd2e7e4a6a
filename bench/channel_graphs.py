"""Three no-op stages, each in a process of its own: the engine's graph against other engines.

A source makes items of `size` bytes with one torch pass, a second stage hands them on, a third
reads them. A function here runs one engine and gives its items per second once it is warm.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from flowengine import Graph, Step
from flowengine.api import Operator, Source
from flowengine.runtime import execute

KIB, MIB = 2**10, 2**20


@dataclass(frozen=True)
class Item:
    x: Tensor


class Items(Source[Item]):
    """One torch pass per item."""

    size: int = KIB

    def read(self, index: int) -> Item:
        return Item(torch.full((self.size // 4,), float(index)))


def hand_on(item: Item) -> Item:
    """The no-op."""
    return item


def flow_rate(size: int) -> float:
    """The engine's local runtime."""
    count = max(200, min(10000, 2**28 // size))
    graph = Graph("no-op", step=Step(samples=count), steps=2)
    graph.add(Reader(), graph.add(hand_on, graph.add(Items(size=size))))
    ends: list[float] = []

    def observe(event: object) -> None:
        if type(event).__name__ == "Reported":
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as directory:
        execute(graph, runtime="local", run_dir=Path(directory), observe=observe)
    return count / (ends[1] - ends[0])


class Reader(Operator):
    """Reads every item fully; reports when a step is over."""

    def open(self, context: object) -> None:
        self.context = context

    def process(self, item: Item) -> None:
        item.x.sum()

    def flush(self) -> None:
        self.context.report("over", 1.0)  # type: ignore[attr-defined]


GRAPHS: dict[str, Callable[[int], float]] = {"flowengine": flow_rate}
GRAPH_BARS: dict[tuple[int, str], float] = {}
