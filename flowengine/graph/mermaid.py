"""The graph as Mermaid text (https://mermaid.js.org/syntax/flowchart.html)."""

from __future__ import annotations

from flowengine.api import Encoder, Objective, Operator, Packer, Source
from flowengine.graph.description import POOL, StageSpec
from flowengine.graph.graph import Graph
from flowengine.graph.ports import type_name
from flowengine.graph.size import format_bytes

_SHAPES = {Source: ("([", "])"), Packer: ("[/", "/]"), Encoder: ("[", "]"), Objective: ("[[", "]]")}


def draw_mermaid(graph: Graph) -> str:
    """A left-to-right flowchart: stages, typed edges, the pool's capacity, dashed feedback."""
    lines = ["flowchart LR"]
    for stage in graph.stages:
        left, right = next((s for k, s in _SHAPES.items() if isinstance(stage.what, k)), ("(", ")"))
        lines.append(f'    {stage.name}{left}"{describe_stage(stage)}"{right}')
    for pool in graph.joins:
        lines.append(f'    {POOL}[("pool<br/>{format_bytes(pool.capacity)}")]')
        for endpoint in pool.inputs:
            kind = graph.stage(endpoint.stage).signature.outputs[endpoint.port]
            lines.append(f"    {endpoint.stage} -->|{type_name(kind)}| {POOL}")
    for stage in graph.stages:
        for port, endpoints in stage.inputs.items():
            label = type_name(stage.signature.inputs[port])
            lines += [f"    {endpoint.stage} -->|{label}| {stage.name}" for endpoint in endpoints]
    for feedback in graph.feedbacks:
        lines.append(f"    {feedback.source.stage} -.->|gradients| {feedback.to}")
    return "\n".join(lines) + "\n"


def describe_stage(stage: StageSpec, newline: str = "<br/>") -> str:
    """The stage's name, what it runs and how it is placed, for a picture."""
    what = stage.what
    lines = [stage.name, type(what).__name__ if isinstance(what, Operator) else "function"]
    if stage.replicas > 1:
        lines.append(f"{stage.replicas} replicas")
    if stage.gang.size > 1:
        lines.append(f"gang of {stage.gang}")
    if stage.freeze:
        lines.append("frozen")
    return newline.join(lines)
