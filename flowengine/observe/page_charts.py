"""The report's charts, from a run's files to SVG; a sentence where there is nothing to draw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from flowengine.graph.size import format_bytes
from flowengine.observe.bottleneck import WARM_STEPS, Shares
from flowengine.observe.charts import (
    heat_chart,
    histogram,
    line_chart,
    share_chart,
    timeline_chart,
)
from flowengine.observe.html import html_table
from flowengine.observe.run_files import RunFiles
from flowengine.observe.view import format_value

STRETCHES = 60
WINDOW_STEPS = 3
SHOWN_REPLICAS = 16
EVALUATIONS = 20
"""In the table, the last so many."""

CHANNELS = 5
"""The fullest channels are drawn, so many at most."""


def draw_losses(steps: Sequence[Mapping[str, Any]]) -> str:
    """The loss of every step, and its mean over about ten."""
    known = [(step["step"], step["loss"]) for step in steps if step["loss"] is not None]
    if not known:
        return "<p>No step has a loss.</p>"
    xs, ys = [step for step, _ in known], [loss for _, loss in known]
    smooth, weight, mean = [], 0.0, 0.0
    for loss in ys:
        mean, weight = 0.9 * mean + 0.1 * loss, 0.9 * weight + 0.1
        smooth.append(mean / weight)
    faint = {"loss": (xs, ys)}
    return line_chart(
        {"loss": (xs, smooth)}, name="loss", x_label="step", y_label="loss", faint=faint
    )


def draw_evaluations(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """A table of what evaluations found; and a chart of what is always between 0 and 1."""
    if not evaluations:
        return ""
    found = [(each["step"], dict(_numbers(each["results"]))) for each in evaluations]
    names = list(dict.fromkeys(name for _, results in found for name in results))
    rows = [
        (str(step), *(format_value(results.get(name, "")) for name in names))
        for step, results in found
    ]
    table = html_table(("after step", *names), rows[-EVALUATIONS:])
    lines = {
        name: (
            [step for step, results in found if name in results],
            [results[name] for _, results in found if name in results],
        )
        for name in names
    }
    shares = {name: line for name, line in lines.items() if 0 <= min(line[1]) <= max(line[1]) <= 1}
    if len(found) < 2 or not shares:
        return table
    chart = line_chart(shares, name="evaluations", x_label="steps", y_label="", top=1.02)
    return chart + table


def _numbers(results: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in what was reported, by path; a path of the same name twice has it once."""
    if isinstance(results, Mapping):
        for key, item in results.items():
            below = key if path.rpartition(" ")[2] in ("", key) else f"{path} {key}"
            yield from _numbers(item, below)
    elif isinstance(results, int | float) and not isinstance(results, bool):
        yield path, results


def draw_shares(shares: Mapping[str, Shares], marked: str | None, *, name: str = "shares") -> str:
    """A bar of time per stage."""
    states = ("busy", "blocked", "starved")
    each = {stage: {s: part.share(s) for s in states} for stage, part in shares.items()}
    if not any(sum(parts.values()) for parts in each.values()):
        return "<p>No training step was recorded.</p>"
    return share_chart(each, marked=marked, name=name) + _note(
        "In the steady state, without the first steps: busy is at work, starved without input, "
        "blocked without room or go-ahead. The bottleneck is busy where the others wait."
    )


def draw_timeline(files: RunFiles) -> str:
    """What the replicas, up to SHOWN_REPLICAS of a stage, did in a few consecutive steps from the
    middle of the run."""
    ends = {step["step"]: step["wall_s"] for step in files.steps}
    kept = set(files.spans["step"].to_pylist())
    first = _middle_step([step for step in sorted(ends) if _is_whole(step, ends, files)], kept)
    if first is None:
        return "<p>Too few steps for a look at some of them.</p>"
    last = min(first + WINDOW_STEPS - 1, max(ends))
    window = (ends[first - 1], ends[last])
    within = pc.and_(
        pc.less(files.spans["began_s"], window[1]), pc.greater(files.spans["ended_s"], window[0])
    )
    rows: dict[str, list[dict[str, Any]]] = {}
    replicas = {name: stage["replicas"] for name, stage in files.config["stages"].items()}
    for name, count in replicas.items():
        shown = range(min(count, SHOWN_REPLICAS))
        rows |= {_label(name, replica, count): [] for replica in shown}
    few = pc.and_(within, pc.less(files.spans["replica"], SHOWN_REPLICAS))
    for span in files.spans.filter(few).to_pylist():
        rows[_label(span["stage"], span["replica"], replicas[span["stage"]])].append(span)
    marks = [(ends[step], f"step {step} done") for step in range(first, last + 1)]
    return timeline_chart(rows, window=window, marks=marks) + _note(
        "Thick bars are work, with the number of the pack; thin ones are waiting. "
        "<code>flowengine trace</code> gives all of it to a trace viewer."
    )


def draw_heat(files: RunFiles) -> str:
    """How busy every stage was over the run."""
    end_s = files.report["wall_s"]
    if not files.spans.num_rows or not end_s:
        return "<p>No work was recorded.</p>"
    edges = [end_s * index / STRETCHES for index in range(STRETCHES + 1)]
    busy, known = (defaultdict[str, list[float]](lambda: [0.0] * STRETCHES) for _ in range(2))
    for span in files.spans.to_pylist():
        _spread(known[span["stage"]], span, end_s)
        if span["state"] == "busy":
            _spread(busy[span["stage"]], span, end_s)
    levels = {
        name: [
            min(1.0, part / total) if total > 0.2 * end_s / STRETCHES else None
            for part, total in zip(busy[name], known[name], strict=True)
        ]
        for name in files.config["stages"]
    }
    return heat_chart(levels, edges=edges, marks=[(at, "restart") for at in files.restarts_s])


def draw_occupancy(files: RunFiles) -> str:
    """The pool's bytes and the fullest channels' rows over time, as parts of their bounds."""
    lines: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    bounds = {}
    for row in files.occupancy.to_pylist():
        used, bound = (row["num_bytes"], row["bound_bytes"])
        if row["kind"] == "channel":
            used, bound = row["items"], row["bound_items"]
        bounds[row["name"]] = (row["kind"], bound)
        if bound:
            lines[row["name"]][0].append(row["wall_s"])
            lines[row["name"]][1].append(100 * used / bound)
    tiers = [name for name in lines if bounds[name][0] == "pool"]
    channels = [name for name in lines if name not in tiers and max(lines[name][1]) > 0]
    shown = tiers + sorted(channels, key=lambda name: -max(lines[name][1]))[:CHANNELS]
    if not shown:
        return "<p>Nobody looked at the pool or the channels.</p>"
    named = {_bounded(name, *bounds[name]): lines[name] for name in shown}
    return line_chart(
        named,
        name="occupancy",
        x_label="seconds since the run started",
        y_label="% of the bound",
        height_in=2.6 + 0.15 * (len(named) // 2),
    )


def draw_packs(files: RunFiles) -> list[str]:
    """How full packs were, and how even the costs of a step's packs."""
    packs = files.packs.filter(pc.invert(files.packs["held_out"])).to_pylist()
    if not packs:
        return ["<p>The graph has no packer.</p>"]
    fills = [pack["tokens"] / pack["room_tokens"] for pack in packs]
    by_step: dict[int, list[float]] = defaultdict(list)
    for pack in packs:
        by_step[pack["step"]].append(pack["cost"])
    evens = [
        cost * len(costs) / sum(costs) for costs in by_step.values() for cost in costs if sum(costs)
    ]
    worst = [max(costs) * len(costs) / sum(costs) for costs in by_step.values() if sum(costs)]
    drawn = [histogram(fills, name="fill", x_label="tokens in the pack, % of its room", unit=0.01)]
    if evens:
        label = "cost of the pack / mean of its step"
        drawn.append(histogram(evens, name="balance", x_label=label))
    text = f"{len(packs)} packs, {sum(fills) / len(fills):.0%} full in the mean."
    text += _describe_cost(files.report)
    if worst:
        text += f" A step's costliest pack costs {sum(worst) / len(worst):.2f} times its mean pack."
    return [f'<div class="pair">{"".join(drawn)}</div>', _note(text)]


def _describe_cost(report: Mapping[str, Any]) -> str:
    """How well a cost fits the packs' measured times."""
    last, drifts = report["cost"]["last"], report["cost"]["drifts"]
    said = (
        f" {report['deferred']} samples were left to the next step." if report["deferred"] else ""
    )
    if last is None:
        return said
    said += (
        f" Measured, a sample of n tokens takes {1e6 * last['linear']:.3g} n + "
        f"{1e6 * last['quadratic']:.3g} n² + {1e6 * last['constant']:.3g} us; the residual "
        f"over {last['packs']} packs is {last['residual']:.0%} of their mean time."
    )
    steps = ", ".join(str(drift["step"]) for drift in drifts[:8])
    return said + (f" The cost before it drifted at step {steps}." if drifts else "")


def draw_staleness(staleness: Sequence[int]) -> str:
    """The largest age of a feature per step, in optimizer steps."""
    if not any(staleness):
        return (
            f"<p>0 in all {len(staleness)} steps: every feature was made with current weights.</p>"
        )
    xs = list(range(len(staleness)))
    return line_chart(
        {"staleness": (xs, staleness)},
        name="staleness",
        x_label="step",
        y_label="optimizer steps",
        height_in=1.6,
        steps=True,
    )


def _middle_step(ends: Sequence[int], kept: set[int]) -> int | None:
    """The first of WINDOW_STEPS steps around the middle whose spans are kept."""
    usable = [s for s in ends if s >= 1 and s - 1 in ends and s in kept and s + 1 in kept]
    warm = [s for s in usable if s >= WARM_STEPS] or usable
    return warm[(len(warm) - 1) // 2] if warm else None


def _is_whole(step: int, ends: Mapping[int, float], files: RunFiles) -> bool:
    """Whether the run did not begin again within the step."""
    return step - 1 not in ends or files.attempt(ends[step - 1]) == files.attempt(ends[step])


def _spread(into: list[float], span: Mapping[str, Any], end_s: float) -> None:
    """Adds the span's seconds to the stretches of the run that it lies in."""
    width = end_s / len(into)
    began, ended = span["began_s"], min(span["ended_s"], end_s)
    for index in range(int(began / width), min(len(into), int(ended / width) + 1)):
        into[index] += max(0.0, min(ended, (index + 1) * width) - max(began, index * width))


def _bounded(name: str, kind: str, bound: int) -> str:
    if kind == "pool":
        return f"{name} ({format_bytes(bound)})"
    return f"{name.replace('>', ' to ').partition(':')[0]} ({bound} rows)"


def _label(stage: str, replica: int, count: int) -> str:
    return f"{stage}[{replica}]" if count > 1 else stage


def _note(text: str) -> str:
    return f'<p class="dim">{text}</p>'
