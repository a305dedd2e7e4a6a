"""A run's graph as Mermaid text: busy times in colour, and the bottleneck marked."""

from __future__ import annotations

from flowengine.observe.palette import LIGHT, heat
from flowengine.observe.picture import Heat
from flowengine.observe.sketch import Sketch

_SHAPES = {
    "source": ("([", "])"),
    "encoder": ("[", "]"),
    "packer": ("[/", "/]"),
    "objective": ("[[", "]]"),
    "pool": ("[(", ")]"),
}


def draw_heated_mermaid(sketch: Sketch, heated: Heat) -> str:
    """A left-to-right flowchart whose boxes are coloured by busy time."""
    lines = ["flowchart LR"]
    for stage in sketch.stages:
        left, right = _SHAPES.get(stage.kind, ("(", ")"))
        text = list(stage.lines)
        if stage.name in heated.busy:
            text.append(f"{heated.busy[stage.name]:.0%} busy")
        lines.append(f'    {stage.name}{left}"{"<br/>".join(text)}"{right}')
        marked = f",stroke:{LIGHT['alarm']},stroke-width:3px" * (stage.name == heated.bottleneck)
        lines.append(
            f"    style {stage.name} fill:{heat(heated.busy.get(stage.name, 0.0))}{marked}"
        )
    for stream in sketch.streams:
        lines.append(f"    {stream.producer} -->|{stream.label}| {stream.reader}")
    for feedback in sketch.feedbacks:
        lines.append(f"    {feedback.producer} -.->|gradients| {feedback.encoder}")
    return "\n".join(lines) + "\n"
