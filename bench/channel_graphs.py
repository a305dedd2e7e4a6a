"""Three no-op stages, each in a process of its own: the engine's graph against other engines.

A source makes items of `size` bytes with one torch pass, a second stage hands them on, a third
reads them. A function here runs one engine and gives its items per second once it is warm.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from flowengine import Graph, Step
from flowengine.api import Operator, Source
from flowengine.runtime import Runtime, execute

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


def flow_rate(size: int, *, runtime: Runtime = "local", most: int = 10000) -> float:
    """The engine, by default its local runtime, on `most` items a step at most."""
    count = max(200, min(most, 2**28 // size))
    graph = Graph("no-op", step=Step(samples=count), steps=2)
    graph.add(Reader(), graph.add(hand_on, graph.add(Items(size=size))))
    ends: list[float] = []

    def observe(event: object) -> None:
        if type(event).__name__ == "Reported":
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as directory:
        execute(graph, runtime=runtime, run_dir=Path(directory), observe=observe)
    return count / (ends[1] - ends[0])


class Reader(Operator):
    """Reads every item fully; reports when a step is over."""

    def open(self, context: object) -> None:
        self.context = context

    def process(self, item: Item) -> None:
        item.x.sum()

    def flush(self) -> None:
        self.context.report("over", 1.0)  # type: ignore[attr-defined]


def make(index: int, size: int) -> Tensor:
    """The first stage of the others."""
    return torch.full((size // 4,), float(index))


def same(x: Tensor) -> Tensor:
    """The no-op of the others."""
    return x


def torchdata_rate(size: int) -> float:
    """torchdata.nodes: two process pools of one worker, read in this process."""
    from torchdata.nodes import IterableWrapper, Loader, ParallelMapper

    count = max(100, min(2000, 2**27 // size))
    settings = {"num_workers": 1, "method": "process", "multiprocessing_context": "forkserver"}
    made = ParallelMapper(IterableWrapper(range(count)), partial(make, size=size), **settings)
    return _rate_of(Loader(ParallelMapper(made, same, **settings)), count)


def spdl_rate(size: int) -> float:
    """SPDL: two stages in process pools of one worker, read in this process."""
    from spdl.pipeline import PipelineBuilder

    count = max(100, min(2000, 2**27 // size))
    context = multiprocessing.get_context("forkserver")
    with (
        ProcessPoolExecutor(1, mp_context=context) as one,
        ProcessPoolExecutor(1, mp_context=context) as two,
    ):
        builder = PipelineBuilder().add_source(range(count))
        builder = builder.pipe(partial(make, size=size), executor=one).pipe(same, executor=two)
        pipeline = builder.add_sink(16).build(num_threads=2)
        with pipeline.auto_stop():
            return _rate_of(pipeline, count)


def _rate_of(items: Iterable[Tensor], count: int) -> float:
    first, began, seen = count // 5, 0.0, 0
    for seen, x in enumerate(items, start=1):
        x.sum()
        if seen == first:
            began = time.perf_counter()
    assert seen == count, f"{seen} of {count} items arrived"
    return (seen - first) / (time.perf_counter() - began)


_ALL: dict[str, tuple[str, Callable[[int], float]]] = {
    "flowengine": ("flowengine", flow_rate),
    "torchdata": ("torchdata", torchdata_rate),
    "SPDL": ("spdl", spdl_rate),
}
GRAPHS = {name: rate for name, (needs, rate) in _ALL.items() if importlib.util.find_spec(needs)}
GRAPH_BARS = {(KIB, name): 20.0 for name in _ALL if name != "flowengine"}
GRAPH_BARS |= {(MIB, name): 4.0 for name in _ALL if name != "flowengine"}
