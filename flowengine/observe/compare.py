"""Two runs side by side: what they were asked for, how fast they were, what they learnt."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from flowengine.graph.size import format_bytes
from flowengine.observe.bottleneck import describe_verdict
from flowengine.observe.charts import line_chart
from flowengine.observe.html import html_page, html_table
from flowengine.observe.page_charts import draw_shares
from flowengine.observe.run_files import RunFiles

FIGURES = ("status", "steps", "samples", "wall_s", "start_s", "samples_per_s", "tokens_per_s")


def compare_runs(one: RunFiles, other: RunFiles) -> dict[str, Any]:
    """runs: the two directories. figures: per name [of the one, of the other], and the quotient
    other / one of numbers, null where there is none. settings: what differs in their
    configuration, by path."""
    figures = {}
    for name, values in _figures(one, other).items():
        one_value, other_value = values
        quotient = None
        if _is_number(one_value) and _is_number(other_value) and one_value:
            quotient = other_value / one_value
        figures[name] = {"values": list(values), "quotient": quotient}
    left, right = _flatten(one.config), _flatten(other.config)
    differing = {
        path: [left.get(path), right.get(path)]
        for path in {**left, **right}
        if left.get(path) != right.get(path) and not path.startswith(("created", "command"))
    }
    runs = [str(one.run_dir), str(other.run_dir)]
    return {"runs": runs, "figures": figures, "settings": differing}


def figure_rows(compared: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Rows of text: name, the one's value, the other's, their quotient."""
    rows = []
    for name, figure in compared["figures"].items():
        one, other = (_text(value, name) for value in figure["values"])
        quotient = figure["quotient"]
        rows.append((name, one, other, f"{quotient:.2f}x" if quotient else ""))
    return rows


def setting_rows(compared: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Rows of text, of what the runs were asked for differently: path, the one's, the other's."""
    settings = sorted(compared["settings"].items())
    return [(path, _text(one), _text(other)) for path, (one, other) in settings]


def make_comparison_page(one: RunFiles, other: RunFiles) -> str:
    """The comparison as one HTML page, with both losses in one chart."""
    compared = compare_runs(one, other)
    names = _names(compared["runs"])
    losses = {
        name: (
            [step["step"] for step in files.steps if step["loss"] is not None],
            [step["loss"] for step in files.steps if step["loss"] is not None],
        )
        for name, files in zip(names, (one, other), strict=True)
    }
    parts = [f"<h1>{escape(names[0])} and {escape(names[1])}</h1>"]
    parts.append(html_table(("", *names, "second / first"), figure_rows(compared)))
    if settings := setting_rows(compared):
        parts.append(f"<h2>What differs</h2>{html_table(('', *names), settings, numbers=False)}")
    if any(xs for xs, _ in losses.values()):
        chart = line_chart(losses, name="losses", x_label="step", y_label="loss", height_in=3.0)
        parts.append(f"<h2>Loss</h2>{chart}")
    for index, (name, files) in enumerate(zip(names, (one, other), strict=True)):
        shares, verdict = describe_verdict(files)
        drawn = draw_shares(shares, verdict.stage, name=f"shares{index}")
        parts.append(f"<h2>Where the time goes: {escape(name)}</h2><p>{escape(verdict.text)}</p>")
        parts.append(drawn)
    return html_page("two runs", parts)


def _figures(one: RunFiles, other: RunFiles) -> dict[str, tuple[Any, Any]]:
    reports = (one.report, other.report)
    found = {name: (reports[0][name], reports[1][name]) for name in FIGURES}
    found["last loss"] = _pair(lambda report: (report["losses"] or [None])[-1], reports)
    found["mean of the last 10 losses"] = _pair(_mean_loss, reports)
    found["pool peak_bytes"] = _pair(lambda report: report["pool"]["peak_bytes"], reports)
    found["mean pack fill"] = _pair(lambda report: report["pool"]["mean_pack_fill"], reports)
    results = [
        _flatten({k: v for k, v in r["results"].items() if k != "evaluations"}) for r in reports
    ]
    for path in {**results[0], **results[1]}:
        found[path] = (results[0].get(path), results[1].get(path))
    shares = [describe_verdict(files)[0] for files in (one, other)]
    for stage in {**shares[0], **shares[1]}:
        busy = [each[stage].share("busy") if stage in each else None for each in shares]
        found[f"{stage} busy"] = (busy[0], busy[1])
    return found


def _pair(of: Any, reports: tuple[Any, Any]) -> tuple[Any, Any]:
    return of(reports[0]), of(reports[1])


def _mean_loss(report: Mapping[str, Any]) -> float | None:
    losses = [loss for loss in report["losses"][-10:] if loss is not None]
    return sum(losses) / len(losses) if losses else None


def _names(runs: list[str]) -> tuple[str, str]:
    """The directories' last parts; whole where those are the same."""
    one, other = (run.rstrip("/").rpartition("/")[2] for run in runs)
    return (one, other) if one != other else (runs[0], runs[1])


def _flatten(record: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in record.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            found |= _flatten(value, here)
        else:
            found[here] = value
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any, name: str = "") -> str:
    if value is not None and name.endswith(" busy"):
        return f"{value:.0%}"
    if value is not None and name.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "-" if value is None else str(value)
