"""The graph as a picture, .svg or .png: boxes by kind, streams with their types, gradients dashed.

Needs matplotlib (the extra `pictures`), which is imported when a picture is drawn.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from flowengine.api import Joined
from flowengine.errors import FlowError
from flowengine.graph import Graph
from flowengine.graph.description import POOL, Endpoint, FeedbackSpec, StageSpec
from flowengine.graph.kind import kind_of
from flowengine.graph.mermaid import describe_stage
from flowengine.graph.ports import type_name
from flowengine.graph.size import format_bytes
from flowengine.observe.layout import Layout, Place, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILLS = {
    "source": "#cfe8d5",
    "function": "#eceff1",
    "encoder": "#cfe0f5",
    "pool": "#fbe7c3",
    "packer": "#fdd9c4",
    "objective": "#ddd3ee",
    "sink": "#d9d9d9",
}
LINE, DIM, GRADIENT = "#37474f", "#607d8b", "#b3392f"
COLUMN, ROW = 2.75, 1.15
WIDTH, HEIGHT, TURN = 1.6, 0.72, 0.4
"""In inches: of a layer and a row, of a box, and of the bends of a gradient's way."""

Point = tuple[float, float]


def draw_picture(graph: Graph, path: Path) -> None:
    """Writes the picture to `path`; its suffix, .svg or .png, chooses the format."""
    if path.suffix not in (".svg", ".png"):
        raise FlowError(f"{path}: a picture is .svg or .png, or .mmd for Mermaid text")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise FlowError(
            "a picture needs matplotlib; run: pip install 'flowengine[pictures]'"
        ) from None
    labels = stream_labels(graph)
    names = [stage.name for stage in graph.stages] + [POOL] * bool(graph.joins)
    layout = lay_out(names, list(labels))
    left, right = -WIDTH / 2 - 0.2, (layout.num_layers - 1) * COLUMN + WIDTH / 2 + 0.2
    rows = [place.row for place in _all_places(layout)]
    bottom, top = -max(rows) * ROW - HEIGHT, -min(rows) * ROW + HEIGHT + 0.25
    bottom -= 0.45 * len(graph.feedbacks) + 0.15 * bool(graph.feedbacks)
    figure = Figure(figsize=(right - left, top - bottom))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.axis("off")
    axes.text(left + 0.2, top - 0.22, _title(graph), fontsize=9, color=DIM, va="center")
    _draw_streams(axes, layout, labels)
    _draw_feedbacks(axes, graph, layout)
    for name in names:
        _draw_stage(axes, graph, name, _point(layout.places[name]))
    with matplotlib.rc_context({"svg.hashsalt": graph.name, "svg.fonttype": "none"}):
        figure.savefig(path, dpi=144, facecolor="white")


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


def _all_places(layout: Layout) -> list[Place]:
    return [*layout.places.values(), *(p for route in layout.routes.values() for p in route)]


def _point(place: Place) -> Point:
    return place.layer * COLUMN, -place.row * ROW


def _title(graph: Graph) -> str:
    parts = [graph.name, f"{graph.step.samples} samples per step"]
    if graph.steps is not None:
        parts.append(f"{graph.steps} steps")
    return "   ".join([*parts, f"staleness {graph.staleness}"])


def _draw_stage(axes: Axes, graph: Graph, name: str, at: Point) -> None:
    from matplotlib.patches import Ellipse, FancyBboxPatch, Rectangle

    x, y = at
    if name == POOL:
        width, cap = WIDTH * 0.72, 0.2
        fill = FILLS["pool"]
        body = (x - width / 2, y - HEIGHT / 2)
        axes.add_patch(Ellipse((x, y - HEIGHT / 2), width, cap, facecolor=fill, edgecolor=LINE))
        axes.add_patch(Rectangle(body, width, HEIGHT, facecolor=fill, edgecolor="none"))
        for side in (body[0], body[0] + width):
            axes.plot([side, side], [y - HEIGHT / 2, y + HEIGHT / 2], color=LINE, linewidth=1.0)
        axes.add_patch(Ellipse((x, y + HEIGHT / 2), width, cap, facecolor=fill, edgecolor=LINE))
        _write(axes, (x, y - 0.05), ["pool", format_bytes(graph.joins[0].capacity)])
        return
    stage = graph.stage(name)
    kind = kind_of(stage)
    axes.add_patch(
        FancyBboxPatch(
            (x - WIDTH / 2, y - HEIGHT / 2),
            WIDTH,
            HEIGHT,
            boxstyle=f"round,pad=0,rounding_size={0.3 if kind in ('source', 'sink') else 0.1}",
            facecolor=FILLS[kind],
            edgecolor=LINE,
            linewidth=1.0,
        )
    )
    _write(axes, at, _stage_lines(graph, stage))


def _stage_lines(graph: Graph, stage: StageSpec) -> list[str]:
    name, what, *placed = describe_stage(stage, newline="\n").split("\n")
    held_out = [f"{e.samples} held out" for e in graph.evaluations if e.through == stage.name]
    return [name, what, *([", ".join(placed + held_out)] if placed or held_out else [])]


def _write(axes: Axes, at: Point, lines: list[str]) -> None:
    x, y = at
    for index, line in enumerate(lines):
        size = 9.0 if index == 0 else 7.5
        axes.text(
            x,
            y + ((len(lines) - 1) / 2 - index) * 0.19,
            line,
            ha="center",
            va="center",
            fontsize=min(size, 1.62 * 72 * WIDTH / max(1, len(line))),
            fontweight="bold" if index == 0 else "normal",
            color=LINE if index == 0 else DIM,
        )


def _draw_streams(axes: Axes, layout: Layout, labels: dict[tuple[str, str], str]) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    for (a, b), label in labels.items():
        (x0, y0), (x1, y1) = _point(layout.places[a]), _point(layout.places[b])
        half_a, half_b = (WIDTH * (0.36 if name == POOL else 0.5) for name in (a, b))
        stops = [(x0 + half_a, y0)]
        for place in layout.routes.get((a, b), ()):
            x, y = _point(place)
            stops += [(x - WIDTH / 2, y), (x + WIDTH / 2, y)]
        stops.append((x1 - half_b, y1))
        points, codes = [stops[0]], [Curve.MOVETO]
        for index, ((ax, ay), (bx, by)) in enumerate(pairwise(stops)):
            if index % 2:
                points, codes = [*points, (bx, by)], [*codes, Curve.LINETO]
            else:
                middle = (ax + bx) / 2
                points += [(middle, ay), (middle, by), (bx, by)]
                codes += [Curve.CURVE4] * 3
        axes.add_patch(
            FancyArrowPatch(
                path=Curve(points, codes),
                arrowstyle="-|>",
                mutation_scale=10,
                color=LINE,
                linewidth=1.0,
                shrinkA=0,
                shrinkB=1,
            )
        )
        (ax, ay), (bx, by) = stops[0], stops[1]
        _label(axes, ((ax + bx) / 2, (ay + by) / 2), label, DIM)


def _draw_feedbacks(axes: Axes, graph: Graph, layout: Layout) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    lowest = -max(place.row for place in _all_places(layout)) * ROW - HEIGHT / 2
    upper_first = sorted(graph.feedbacks, key=lambda feedback: layout.places[feedback.to].row)
    for index, feedback in enumerate(upper_first):
        x0, y0 = _point(layout.places[feedback.source.stage])
        floor = lowest - 0.3 - 0.45 * index
        start = (x0 + 0.25 * (index - (len(upper_first) - 1) / 2), y0 - HEIGHT / 2)
        rise, entry = _entry(layout, feedback)
        points = [start, (start[0], floor), (start[0], floor), (start[0] - TURN, floor)]
        points += [(rise + TURN, floor), (rise, floor), (rise, floor), (rise, floor + TURN)]
        codes = [Curve.MOVETO, *[Curve.CURVE4] * 3, Curve.LINETO, *[Curve.CURVE4] * 3]
        if rise == entry[0]:
            points, codes = [*points, entry], [*codes, Curve.LINETO]
        else:
            points += [(rise, entry[1] - TURN / 2), (rise, entry[1]), (rise, entry[1]), entry]
            codes += [Curve.LINETO, *[Curve.CURVE4] * 3]
        axes.add_patch(
            FancyArrowPatch(
                path=Curve(points, codes),
                arrowstyle="-|>",
                mutation_scale=10,
                color=GRADIENT,
                linewidth=1.0,
                linestyle=(0, (4, 2)),
                shrinkA=0,
                shrinkB=1,
            )
        )
        name = f"gradients ({type(feedback.what).__name__})"
        _label(axes, ((start[0] + rise) / 2, floor), name, GRADIENT)


def _entry(layout: Layout, feedback: FeedbackSpec) -> tuple[float, Point]:
    """Where gradients come up to an encoder and enter it: from below, or from the right where
    another stage stands below it."""
    place = layout.places[feedback.to]
    x, y = _point(place)
    below = any(p.layer == place.layer and p.row > place.row for p in layout.places.values())
    if below:
        return x + WIDTH / 2 + 0.3, (x + WIDTH / 2, y - HEIGHT * 0.3)
    return x, (x, y - HEIGHT / 2)


def _label(axes: Axes, at: Point, text: str, colour: str) -> None:
    axes.text(
        *at,
        text,
        fontsize=7.5,
        color=colour,
        ha="center",
        va="center",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )
