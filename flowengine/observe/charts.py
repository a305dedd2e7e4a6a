"""The charts of a run, drawn by matplotlib as SVG text to be put into a page.

Every function takes what it draws as plain values and gives the SVG, in the colours of
flowengine.observe.palette, so that a page can show it in light and dark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

from flowengine.observe.palette import LIGHT, SERIES, heat, themed
from flowengine.observe.picture import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 11.4
POINTS = 800
"""Of a line at most; longer ones are thinned to their means."""

Line = tuple[Sequence[float], Sequence[float]]
"""x values, y values"""


def line_chart(
    lines: Mapping[str, Line],
    *,
    name: str,
    x_label: str,
    y_label: str,
    height_in: float = 2.3,
    steps: bool = False,
    faint: Mapping[str, Line] | None = None,
    top: float | None = None,
) -> str:
    """Lines by label. steps: values hold until the next. faint: drawn behind, without labels.
    top: the y axis ends there and begins at 0."""
    with _chart(name, height_in=height_in) as (axes, svg):
        for index, (xs, ys) in enumerate((faint or {}).values()):
            colour = LIGHT[SERIES[index % len(SERIES)]]
            axes.plot(*_thin(xs, ys), color=colour, alpha=0.35, linewidth=0.8)
        for index, (label, (xs, ys)) in enumerate(lines.items()):
            colour = LIGHT[SERIES[index % len(SERIES)]]
            style = "steps-post" if steps else "default"
            axes.plot(*_thin(xs, ys), color=colour, label=label, linewidth=1.5, drawstyle=style)
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.margins(x=0.01)
        if top is not None:
            axes.set_ylim(0, top)
        if len(lines) > 1:
            _legend(axes)
    return svg()


_ON = {"busy": "paper", "blocked": "on_blocked", "starved": "ink"}
"""The colour of text on a bar of this colour."""


def share_chart(
    shares: Mapping[str, Mapping[str, float]], *, marked: str | None, name: str = "shares"
) -> str:
    """Per stage, one bar of its time: busy, blocked, starved. marked: the bottleneck."""
    names = list(shares)
    with _chart(name, height_in=0.5 + 0.3 * len(names)) as (axes, svg):
        for row, stage in enumerate(names):
            left = 0.0
            for state in ("busy", "blocked", "starved"):
                share = shares[stage].get(state, 0.0)
                label = state if row == 0 else None
                axes.barh(row, share, 0.62, left=left, color=LIGHT[state], label=label)
                if share > 0.06:
                    _centre(axes, (left + share / 2, row), f"{share:.0%}", LIGHT[_ON[state]])
                left += share
        axes.set_yticks(range(len(names)), names)
        for tick, stage in zip(axes.get_yticklabels(), names, strict=True):
            tick.set_color(LIGHT["alarm"] if stage == marked else LIGHT["ink"])
            tick.set_fontweight("bold" if stage == marked else "normal")
        axes.set(xlim=(0, 1), xticks=[])
        axes.invert_yaxis()
        axes.grid(visible=False)
        _legend(axes)
    return svg()


WORK_COLOURS = {
    "read": "third",
    "plan": "third",
    "forward": "busy",
    "train": "busy",
    "answer": "busy",
    "process": "busy",
    "backward": "second",
    "optimizer": "alarm",
    "join": "line",
    "other": "dim",
}


def timeline_chart(
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    window: tuple[float, float],
    marks: Sequence[tuple[float, str]],
) -> str:
    """A row per stage replica: work as thick bars with their pack's number, waiting as thin ones.

    rows: spans by label, as dicts of spans.parquet's columns. window: seconds from and to. marks:
    vertical lines with a text.
    """
    first, last = window
    with _chart("timeline", height_in=0.75 + 0.34 * len(rows)) as (axes, svg):
        used = []
        for row, spans in enumerate(rows.values()):
            bars: dict[float, list[tuple[float, float, str]]] = {0.66: [], 0.16: []}
            for span in spans:
                began, ended = max(first, span["began_s"]), min(last, span["ended_s"])
                if ended <= began:
                    continue
                busy = span["state"] == "busy"
                colour = WORK_COLOURS.get(span["what"], "dim") if busy else span["state"]
                used.append((span["what"] if busy else span["state"], colour))
                bars[0.66 if busy else 0.16].append((began, ended - began, LIGHT[colour]))
                if busy and span["pack"] >= 0 and ended - began > 0.015 * (last - first):
                    at = ((began + ended) / 2, row)
                    _centre(axes, at, str(span["pack"]), LIGHT["paper"])
            for height, drawn in bars.items():
                colours = [colour for _, _, colour in drawn]
                places = [(began, width) for began, width, _ in drawn]
                axes.broken_barh(places, (row - height / 2, height), facecolors=colours)
        _mark(axes, marks)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set(xlim=window, ylim=(len(rows) - 0.5, -0.6), xlabel="seconds since the run started")
        axes.grid(visible=False)
        names: dict[str, list[str]] = {}
        for what, colour in dict.fromkeys(used):
            names.setdefault(colour, []).append(what)
        _swatches(axes, {", ".join(sorted(set(whats))): c for c, whats in names.items()})
    return svg()


def heat_chart(
    levels: Mapping[str, Sequence[float | None]],
    *,
    edges: Sequence[float],
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """A strip per stage: how busy it was in each stretch of the run, None where nothing is known.

    edges: seconds, one more than there are stretches. marks: vertical lines with a text.
    """
    with _chart("heat", height_in=0.75 + 0.28 * len(levels)) as (axes, svg):
        for row, shares in enumerate(levels.values()):
            known = [(index, share) for index, share in enumerate(shares) if share is not None]
            bars = [(edges[index], edges[index + 1] - edges[index]) for index, _ in known]
            colours = [heat(share) for _, share in known]
            axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=colours)
        _mark(axes, marks)
        axes.set_yticks(range(len(levels)), list(levels))
        axes.set(xlim=(edges[0], edges[-1]), xlabel="seconds since the run started")
        axes.set_ylim(len(levels) - 0.5, -0.6)
        axes.grid(visible=False)
        _swatches(axes, {f"{20 * i} to {20 * i + 20} % busy": f"heat{i}" for i in range(5)})
    return svg()


def histogram(values: Sequence[float], *, name: str, x_label: str, unit: float = 1.0) -> str:
    """How often which value occurs, in 24 classes; `unit` is what the axis counts in."""
    with _chart(name, height_in=2.0, width_in=WIDTH_IN / 2) as (axes, svg):
        scaled = [value / unit for value in values]
        low, high = min(scaled), max(scaled)
        room = max((high - low) * 0.02, abs(high) * 0.005, 1e-9)
        axes.hist(scaled, 24, range=(low - room, high + room), color=LIGHT["busy"])
        axes.set(xlabel=x_label, ylabel="packs")
    return svg()


def figure_svg(figure: Figure, *, name: str) -> str:
    """The figure as SVG text: themed, and with ids that no other figure of the page has."""
    target = BytesIO()
    save_figure(figure, target, salt=name)
    text = target.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    size = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', text)
    assert size is not None
    width = float(size[1]) * 4 / 3
    label = f'class="chart" role="img" aria-label="{name}" style="width:{width:.0f}px"'
    return themed(text.replace(size[0], label, 1))


@contextmanager
def _chart(
    name: str, *, height_in: float, width_in: float = WIDTH_IN
) -> Iterator[tuple[Axes, Callable[[], str]]]:
    """Axes to draw on, and a function that gives the SVG once the block is over."""
    import matplotlib
    from matplotlib.figure import Figure

    dim = {"color": LIGHT["dim"], "labelcolor": LIGHT["dim"]}
    style: dict[Any, Any] = {
        "font.size": 8,
        "axes.edgecolor": LIGHT["grid"],
        "axes.labelcolor": LIGHT["dim"],
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": LIGHT["grid"],
        "grid.linewidth": 0.6,
        **{f"{axis}tick.{key}": value for axis in "xy" for key, value in dim.items()},
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        yield figure.add_subplot(), lambda: figure_svg(figure, name=name)


def _mark(axes: Axes, marks: Sequence[tuple[float, str]]) -> None:
    """Vertical lines over the rows of a chart, with a text on top."""
    for at, text in marks:
        axes.axvline(at, color=LIGHT["dim"], linewidth=0.8, linestyle=(0, (3, 2)))
        axes.text(at, -0.62, text, fontsize=6.5, color=LIGHT["dim"], ha="right")


def _centre(axes: Axes, at: tuple[float, float], text: str, colour: str) -> None:
    axes.text(*at, text, fontsize=7, color=colour, ha="center", va="center")


def _legend(axes: Axes) -> None:
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=4 if sum(len(text) for text in axes.get_legend_handles_labels()[1]) < 80 else 3,
        frameon=False,
        fontsize=7.5,
        labelcolor=LIGHT["ink"],
        borderaxespad=0,
    )


def _swatches(axes: Axes, colours: Mapping[str, str]) -> None:
    """A legend of colours, by label."""
    from matplotlib.patches import Patch

    handles = [Patch(color=LIGHT[colour], label=label) for label, colour in colours.items()]
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, -0.32 if axes.get_ylim()[0] < 4 else -0.2),
        ncols=8,
        frameon=False,
        fontsize=7,
        labelcolor=LIGHT["ink"],
    )


def _thin(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """At most POINTS points: means of neighbours."""
    size = -(-len(xs) // POINTS)
    if size <= 1:
        return xs, ys
    starts = range(0, len(xs), size)
    return tuple([sum(v[s : s + size]) / len(v[s : s + size]) for s in starts] for v in (xs, ys))  # type: ignore[return-value]
