"""The small graphs for seeded faults; each has an operator that knows what it has seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from fakes import VOCABULARY, small_graph
from fakes_faulty import faulty_graph
from fakes_slow import SlowModel

from flowengine import Graph
from flowengine.api import Context, Operator, Sample
from flowengine.graph import Stream
from flowengine.operators.packing import CostPacker


class Seen(Operator):
    """Remembers which samples it has seen, over the whole training, and tells at every step."""

    def open(self, context: Context) -> None:
        self._report = context.report
        self._ids: list[int] = []

    def process(self, sample: Sample) -> None:
        self._ids.append(int(sample.note["index"]))

    def flush(self) -> None:
        self._report("seen", list[Any](self._ids))

    def state(self) -> Mapping[str, Any]:
        return {"ids": torch.tensor(self._ids)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._ids = state["ids"].tolist()


def _watched(graph: Graph, *, every: int) -> Graph:
    graph.add(Seen(), Stream(graph, "source"), name="seen")
    graph.checkpoint(every=every, keep_last=2)
    return graph


def _spilling() -> Graph:
    model = SlowModel(vocabulary=VOCABULARY, width=12, depth=1, heads=2, groups=1, rounds=6)
    graph = faulty_graph(
        model=model,
        packer=CostPacker(max_tokens=32),
        samples=40,
        steps=3,
        capacity="48 KiB",
    )
    graph.evaluations.clear()
    graph.joins[0].disk = 2**20
    return _watched(graph, every=1)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "training": lambda: _watched(small_graph(steps=6), every=2),
    "replicas": lambda: _watched(small_graph(steps=5, replicas=2, model_replicas=2), every=1),
    "staleness 1": lambda: _watched(small_graph(steps=5, staleness=1), every=2),
    "recompute, no clipping": lambda: _watched(
        small_graph(steps=5, activations="recompute", clip_norm=None), every=3
    ),
    "spilling": _spilling,
}
