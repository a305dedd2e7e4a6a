"""A graph as Mermaid text (https://mermaid.js.org/syntax/flowchart.html); after a run, with busy
times in colour and the bottleneck marked."""

from __future__ import annotations

from collections.abc import Iterator

from flowengine.observe.palette import LIGHT, heat
from flowengine.observe.picture import Heat
from flowengine.observe.sketch import Sketch, SketchStage

_SHAPES = {
    "source": ("([", "])"),
    "encoder": ("[", "]"),
    "packer": ("[/", "/]"),
    "objective": ("[[", "]]"),
    "pool": ("[(", ")]"),
}


def draw_mermaid(sketch: Sketch, *, heated: Heat | None = None) -> str:
    """A left-to-right flowchart: stages and how they are placed, streams with their types and the
    bounds of their channels, dashed feedback."""
    lines = ["flowchart LR"]
    for stage in sketch.stages:
        lines += _stage_lines(stage, heated)
    for stream in sketch.streams:
        bound = "" if stream.bound is None else f"<br/>{stream.bound} rows"
        lines.append(f"    {stream.producer} -->|{stream.label}{bound}| {stream.reader}")
    for feedback in sketch.feedbacks:
        text = f"gradients ({feedback.operator})"
        lines.append(f'    {feedback.producer} -.->|"{text}"| {feedback.encoder}')
    return "\n".join(lines) + "\n"


def _stage_lines(stage: SketchStage, heated: Heat | None) -> Iterator[str]:
    left, right = _SHAPES.get(stage.kind, ("(", ")"))
    text = list(stage.lines)
    if heated is not None and stage.name in heated.busy:
        text.append(f"{heated.busy[stage.name]:.0%} busy")
    if heated is not None and stage.name == heated.bottleneck:
        text.append("bottleneck")
    yield f'    {stage.name}{left}"{"<br/>".join(text)}"{right}'
    if heated is not None:
        marked = f",stroke:{LIGHT['alarm']},stroke-width:3px"
        fill = heat(heated.busy.get(stage.name, 0.0))
        yield f"    style {stage.name} fill:{fill}{marked * (stage.name == heated.bottleneck)}"
