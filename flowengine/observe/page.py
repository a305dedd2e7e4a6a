"""report.html: what a run showed, on one page that needs no network and no script.

The charts are SVG within the page; colours are CSS variables, right in light and dark.
"""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from flowengine.graph.size import format_bytes
from flowengine.observe.bottleneck import Shares, Verdict, describe_verdict
from flowengine.observe.charts import figure_svg
from flowengine.observe.html import html_page, html_table
from flowengine.observe.page_charts import (
    draw_evaluations,
    draw_heat,
    draw_losses,
    draw_occupancy,
    draw_packs,
    draw_shares,
    draw_staleness,
    draw_timeline,
)
from flowengine.observe.picture import Heat, draw_figure
from flowengine.observe.run_files import RunFiles
from flowengine.observe.view import format_duration, format_value

NAME = "report.html"


def write_page(run_dir: Path) -> Path:
    """Writes report.html from the other files of `run_dir`, and gives its path.

    A page that cannot be drawn says so, with the reason; it never fails the run it is about.
    """
    path = run_dir / NAME
    try:
        page = make_page(RunFiles(run_dir))
    except Exception:
        reason = f"<pre>{escape(traceback.format_exc())}</pre>"
        page = html_page("report", ["<h1>This report could not be drawn</h1>", reason])
    path.write_text(page, encoding="utf-8")
    return path


def make_page(files: RunFiles) -> str:
    """The page of a run that is over."""
    shares, verdict = describe_verdict(files)
    name = files.config["graph"]
    sections = [
        _header(files, verdict),
        _section("Graph", _graph(files, shares, verdict)),
        _section("Where the time goes", draw_shares(shares, verdict.stage), _waits(shares)),
        _section("Three steps in detail", draw_timeline(files)),
        _section("The whole run", draw_heat(files)),
        _section("Loss", draw_losses(files.steps)),
        _section("Evaluations and results", *_found(files.report)),
        _section("Pool and channels", draw_occupancy(files)),
        _section("Packs", *draw_packs(files)),
        _section("Staleness", draw_staleness(files.report["staleness"])),
        _section("Dead letters", _dead_letters(files.report)),
        _section("Restarts and checkpoints", _restarts(files.report)),
        _section("What was run", _what_was_run(files)),
    ]
    return html_page(f"{name}: report", sections)


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _header(files: RunFiles, verdict: Verdict) -> str:
    report = files.report
    steps = f"{report['steps']}" + (f" of {files.config['steps']}" if files.config["steps"] else "")
    last = report["losses"][-1] if report["losses"] else None
    peak = report["pool"]["peak_bytes"]
    tiles = {
        "status": report["status"],
        "steps": steps,
        "last loss": _number(last, ".4f"),
        "samples/s": _number(report["samples_per_s"], ",.0f"),
        "tokens/s": _number(report["tokens_per_s"], ",.0f"),
        "took": format_duration(report["wall_s"]),
        "pool, at most": format_bytes(peak) if peak is not None else "-",
        **_disk_tile(report["pool"]),
        "packs full": _number(report["pool"]["mean_pack_fill"], ".0%"),
    }
    if report["restarts"]:
        tiles["restarts"] = str(len(report["restarts"]))
    shown = "".join(f"<div><b>{escape(v)}</b><span>{k}</span></div>" for k, v in tiles.items())
    error = report["error"]
    failed = f'<div class="verdict failed">{escape(error)}</div>' if error else ""
    return (
        f"<h1>{escape(files.config['graph'])}</h1>"
        f'<p class="dim">{escape(report["created"])} UTC, {escape(str(report["run_dir"]))}</p>'
        f'{failed}<div class="tiles">{shown}</div>'
        f'<div class="verdict"><b>{escape(verdict.text)}</b> {escape(verdict.advice)}</div>'
    )


def _disk_tile(pool: Mapping[str, Any]) -> dict[str, str]:
    if not pool["disk_capacity_bytes"]:
        return {}
    return {"on disk, at most": format_bytes(pool["disk_peak_bytes"])}


def _graph(files: RunFiles, shares: Mapping[str, Shares], verdict: Verdict) -> str:
    heated = Heat({name: each.share("busy") for name, each in shares.items()}, verdict.stage)
    figure = draw_figure(files.sketch, heated=heated)
    return figure_svg(figure, name="graph")


def _waits(shares: Mapping[str, Shares]) -> str:
    rows = []
    for name, each in shares.items():
        total = sum(each.seconds.values())
        for (state, cause), seconds in sorted(each.waits.items(), key=lambda item: -item[1])[:3]:
            if seconds > 0.01 * total:
                rows.append((name, state, cause, f"{seconds / total:.0%}"))
    if not rows:
        return ""
    return html_table(("stage", "is", "waiting for", "of its time"), rows)


def _found(report: Mapping[str, Any]) -> list[str]:
    evaluations = report["results"]["evaluations"]
    evaluated = {stage for each in evaluations for stage in each["results"]}
    rows = [
        (stage, name, format_value(value))
        for stage, results in report["results"].items()
        if stage != "evaluations" and stage not in evaluated
        for name, value in results.items()
    ]
    drawn = [draw_evaluations(evaluations)] if evaluations else []
    if rows:
        drawn.append(html_table(("stage", "said last", ""), rows))
    return drawn or ["<p>None: no stage reported anything.</p>"]


def _dead_letters(report: Mapping[str, Any]) -> str:
    letters = report["dead_letters"]
    if not letters:
        return "<p>None: no sample was left out.</p>"
    rows = [(each["sample"], each["stage"], each["reason"]) for each in letters[:200]]
    more = f"<p>{len(letters)} in all; the first 200 are shown.</p>" if len(letters) > 200 else ""
    return html_table(("sample", "stage", "reason"), rows) + more


def _restarts(report: Mapping[str, Any]) -> str:
    checkpoints, restarts = report["checkpoints"], report["restarts"]
    text = "No checkpoint was made."
    if checkpoints:
        last = checkpoints[-1]
        text = f"Checkpoints: {len(checkpoints)}, the last behind step {last['step']}."
    if not restarts:
        return f"<p>No restart. {text}</p>"
    rows = [
        (str(each["step"]), format_duration(each["wall_s"]), each["reason"]) for each in restarts
    ]
    return f"<p>{text}</p>" + html_table(("back to step", "after", "reason"), rows)


def _what_was_run(files: RunFiles) -> str:
    config = files.config
    program, *arguments = config["command"] or ["flowengine"]
    if Path(program).name in ("__main__.py", "flowengine"):
        program = "flowengine"
    command = f"<pre>{escape(shlex.join([program, *arguments]))}</pre>"
    stages = [
        (name, stage["kind"], stage["operator"], str(stage["replicas"]), stage["optimizer"] or "")
        for name, stage in config["stages"].items()
    ]
    plain = {k: v for k, v in config.items() if not isinstance(v, list | dict)}
    facts = [(key, str(value)) for key, value in {**plain, **config["environment"]}.items()]
    table = html_table(("stage", "kind", "operator", "replicas", "optimizer"), stages)
    return f"<p>To repeat it:</p>{command}{table}{html_table((), facts, numbers=False)}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
