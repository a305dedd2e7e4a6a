"""What a picture of a graph shows, as plain data: kept in run.json, so that a run can be drawn
without its graph file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flowengine.api import Joined, Operator
from flowengine.graph import Graph
from flowengine.graph.description import POOL, Endpoint, StageSpec
from flowengine.graph.kind import kind_of
from flowengine.graph.ports import type_name
from flowengine.graph.size import format_bytes


@dataclass(frozen=True)
class SketchStage:
    """A box. kind: as in flowengine.graph.kind, or "pool". lines: what is written in it."""

    name: str
    kind: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class SketchStream:
    """An arrow. label: the types of the values. bound: of each of its channels, in rows; None
    into the pool, which is bounded in bytes."""

    producer: str
    reader: str
    label: str
    bound: int | None


@dataclass(frozen=True)
class SketchFeedback:
    """A dashed arrow: the way of gradients. operator: what happens to them on their way."""

    producer: str
    encoder: str
    operator: str


@dataclass(frozen=True)
class Sketch:
    """A graph as drawn. Boxes come in the graph's order, the pool last."""

    title: str
    stages: tuple[SketchStage, ...]
    streams: tuple[SketchStream, ...]
    feedbacks: tuple[SketchFeedback, ...]

    def to_json(self) -> dict[str, Any]:
        """As run.json holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Sketch:
        """From what `to_json` gave, read back from JSON."""
        stages = (SketchStage(s["name"], s["kind"], tuple(s["lines"])) for s in record["stages"])
        return cls(
            title=record["title"],
            stages=tuple(stages),
            streams=tuple(SketchStream(**stream) for stream in record["streams"]),
            feedbacks=tuple(SketchFeedback(**feedback) for feedback in record["feedbacks"]),
        )


def sketch_graph(graph: Graph) -> Sketch:
    """The sketch of a graph, also of one that the checks refuse."""
    stages = [SketchStage(s.name, kind_of(s), _stage_lines(graph, s)) for s in graph.stages]
    if graph.joins:
        lines = (POOL, format_bytes(graph.joins[0].capacity))
        stages.append(SketchStage(POOL, POOL, lines))
    bounds = {stage.name: stage.credits.items for stage in graph.stages}
    streams = tuple(
        SketchStream(producer, reader, label, bounds.get(reader))
        for (producer, reader), label in stream_labels(graph).items()
    )
    feedbacks = tuple(
        SketchFeedback(feedback.source.stage, feedback.to, type(feedback.what).__name__)
        for feedback in graph.feedbacks
    )
    return Sketch(_title(graph), tuple(stages), streams, feedbacks)


def stream_labels(graph: Graph) -> dict[tuple[str, str], str]:
    """Per pair of stages, the types that go from one to the other."""
    found: dict[tuple[str, str], list[str]] = {}
    for pool in graph.joins:
        for endpoint in pool.inputs:
            found.setdefault((endpoint.stage, POOL), []).append(_stream_label(graph, endpoint))
    for stage in graph.stages:
        for endpoint in stage.producers:
            label = _stream_label(graph, endpoint)
            found.setdefault((endpoint.stage, stage.name), []).append(label)
    return {pair: ", ".join(dict.fromkeys(types)) for pair, types in found.items()}


def _stream_label(graph: Graph, endpoint: Endpoint) -> str:
    """The type; with the port's name where a stage has several ports of that type."""
    if endpoint.stage == POOL:
        return type_name(Joined)
    outputs = graph.stage(endpoint.stage).signature.outputs
    kind = outputs[endpoint.port]
    same = [port for port, other in outputs.items() if other == kind]
    return type_name(kind) if len(same) == 1 else f"{endpoint.port}: {type_name(kind)}"


def _title(graph: Graph) -> str:
    parts = [f"{graph.step.samples} samples per step"]
    if graph.steps is not None:
        parts.append(f"{graph.steps} steps")
    return f"{graph.name}: " + ", ".join([*parts, f"staleness {graph.staleness}"])


def _stage_lines(graph: Graph, stage: StageSpec) -> tuple[str, ...]:
    """The stage's name, what it runs, and how it is placed."""
    placed = []
    if stage.replicas > 1:
        placed.append(f"{stage.replicas} replicas")
    if stage.gang.size > 1:
        placed.append(f"gang of {stage.gang}")
    if stage.freeze:
        placed.append("frozen")
    placed += [f"{e.samples} held out" for e in graph.evaluations if e.through == stage.name]
    what = type(stage.what).__name__ if isinstance(stage.what, Operator) else "function"
    return stage.name, what, *((", ".join(placed),) if placed else ())
