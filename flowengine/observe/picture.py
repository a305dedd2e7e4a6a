"""The graph as a picture, .svg or .png: boxes by kind, streams with their types and bounds,
gradients dashed; after a run, boxes by busy time. matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING

from flowengine.errors import FlowError
from flowengine.graph.description import POOL
from flowengine.observe.layout import Layout, Place, lay_out
from flowengine.observe.palette import LIGHT, heat
from flowengine.observe.sketch import Sketch, SketchFeedback, SketchStage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, LINE, DIM = LIGHT["ink"], LIGHT["line"], LIGHT["dim"]
GRADIENT, PAPER = LIGHT["gradient"], LIGHT["paper"]
COLUMN, ROW = 2.75, 1.25
WIDTH, HEIGHT, TURN = 1.6, 0.84, 0.4
"""In inches: of a layer and a row, of a box, and of the bends of a gradient's way."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Heat:
    """What a run showed. busy: per stage, the part of its time that was work, 0 to 1. bottleneck:
    the stage that the others waited for, if there is one."""

    busy: Mapping[str, float]
    bottleneck: str | None


def draw_picture(sketch: Sketch, path: Path, *, heated: Heat | None = None) -> None:
    """Writes the picture to `path`; its suffix, .svg or .png, chooses the format.

    heated: colours the stages by their busy time in a run, and marks the bottleneck.
    """
    if path.suffix not in (".svg", ".png"):
        raise FlowError(f"{path}: a picture is .svg or .png, or .mmd for Mermaid text")
    save_figure(draw_figure(sketch, heated=heated), path, salt=sketch.title)


def draw_figure(sketch: Sketch, *, heated: Heat | None = None) -> Figure:
    """The picture as a figure."""
    from matplotlib.figure import Figure

    names = [stage.name for stage in sketch.stages]
    layout = lay_out(names, [(stream.producer, stream.reader) for stream in sketch.streams])
    left, right = -WIDTH / 2 - 0.2, (layout.num_layers - 1) * COLUMN + WIDTH / 2 + 0.2
    rows = [place.row for place in _all_places(layout)]
    bottom, top = -max(rows) * ROW - HEIGHT, -min(rows) * ROW + HEIGHT + 0.25
    bottom -= 0.45 * len(sketch.feedbacks) + 0.15 * bool(sketch.feedbacks)
    figure = Figure(figsize=(right - left, top - bottom))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.axis("off")
    axes.text(left + 0.2, top - 0.22, sketch.title, fontsize=9, color=DIM, va="center")
    _draw_streams(axes, sketch, layout)
    _draw_feedbacks(axes, sketch, layout)
    for stage in sketch.stages:
        _draw_stage(axes, stage, _point(layout.places[stage.name]), heated=heated)
    return figure


def save_figure(figure: Figure, target: Path | IO[bytes], *, salt: str) -> None:
    """Writes the figure; the same figure with the same `salt` gives the same bytes as .svg."""
    import matplotlib

    kind = target.suffix[1:] if isinstance(target, Path) else "svg"
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(target, format=kind, dpi=144, facecolor=PAPER, metadata=metadata)


def _all_places(layout: Layout) -> list[Place]:
    return [*layout.places.values(), *(p for route in layout.routes.values() for p in route)]


def _point(place: Place) -> Point:
    return place.layer * COLUMN, -place.row * ROW


def _draw_stage(axes: Axes, stage: SketchStage, at: Point, *, heated: Heat | None) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = at
    lines = list(stage.lines)
    if stage.kind == POOL:
        _draw_cylinder(axes, at, fill=LIGHT["pool"] if heated is None else heat(0.0))
        _write(axes, (x, y - 0.05), lines)
        return
    share = heated.busy.get(stage.name) if heated is not None else None
    marked = heated is not None and heated.bottleneck == stage.name
    if share is not None:
        lines.append(f"{share:.0%} busy")
    corner = 0.3 if stage.kind in ("source", "sink") else 0.1
    fill = LIGHT[stage.kind] if heated is None else heat(share or 0.0)
    axes.add_patch(
        FancyBboxPatch(
            (x - WIDTH / 2, y - HEIGHT / 2),
            WIDTH,
            HEIGHT,
            boxstyle=f"round,pad=0,rounding_size={corner}",
            facecolor=fill,
            edgecolor=LIGHT["alarm"] if marked else LINE,
            linewidth=2.4 if marked else 1.0,
        )
    )
    _write(axes, at, lines, faint=DIM if heated is None else INK)
    if marked:
        _label(axes, (x, y + HEIGHT / 2 + 0.13), "bottleneck", LIGHT["alarm"])


def _draw_cylinder(axes: Axes, at: Point, *, fill: str) -> None:
    from matplotlib.patches import Ellipse, Rectangle

    x, y = at
    width, cap = WIDTH * 0.72, 0.2
    body = (x - width / 2, y - HEIGHT / 2)
    axes.add_patch(Ellipse((x, y - HEIGHT / 2), width, cap, facecolor=fill, edgecolor=LINE))
    axes.add_patch(Rectangle(body, width, HEIGHT, facecolor=fill, edgecolor="none"))
    for side in (body[0], body[0] + width):
        axes.plot([side, side], [y - HEIGHT / 2, y + HEIGHT / 2], color=LINE, linewidth=1.0)
    axes.add_patch(Ellipse((x, y + HEIGHT / 2), width, cap, facecolor=fill, edgecolor=LINE))


def _write(axes: Axes, at: Point, lines: list[str], *, faint: str = DIM) -> None:
    x, y = at
    for index, line in enumerate(lines):
        size = 9.0 if index == 0 else 7.5
        axes.text(
            x,
            y + ((len(lines) - 1) / 2 - index) * min(0.19, 0.66 / len(lines)),
            line,
            ha="center",
            va="center",
            fontsize=min(size, 1.62 * 72 * WIDTH / max(1, len(line))),
            fontweight="bold" if index == 0 else "normal",
            color=INK if index == 0 else faint,
        )


def _draw_streams(axes: Axes, sketch: Sketch, layout: Layout) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    for stream in sketch.streams:
        a, b = stream.producer, stream.reader
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
        middle_of = ((ax + bx) / 2, (ay + by) / 2)
        _label(axes, middle_of, stream.label, DIM)
        if stream.bound is not None:
            below = (middle_of[0], middle_of[1] - 0.16)
            _label(axes, below, f"{stream.bound} rows", DIM, size=6)


def _draw_feedbacks(axes: Axes, sketch: Sketch, layout: Layout) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    lowest = -max(place.row for place in _all_places(layout)) * ROW - HEIGHT / 2
    upper_first = sorted(sketch.feedbacks, key=lambda feedback: layout.places[feedback.encoder].row)
    for index, feedback in enumerate(upper_first):
        x0, y0 = _point(layout.places[feedback.producer])
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
        name = f"gradients ({feedback.operator})"
        _label(axes, ((start[0] + rise) / 2, floor), name, GRADIENT)


def _entry(layout: Layout, feedback: SketchFeedback) -> tuple[float, Point]:
    """Where gradients come up to an encoder and enter it: from below, or from the right where
    another stage stands below it."""
    place = layout.places[feedback.encoder]
    x, y = _point(place)
    below = any(p.layer == place.layer and p.row > place.row for p in layout.places.values())
    if below:
        return x + WIDTH / 2 + 0.3, (x + WIDTH / 2, y - HEIGHT * 0.3)
    return x, (x, y - HEIGHT / 2)


def _label(axes: Axes, at: Point, text: str, colour: str, *, size: float = 7.5) -> None:
    axes.text(
        *at,
        text,
        fontsize=size,
        color=colour,
        ha="center",
        va="center",
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.0},
    )
