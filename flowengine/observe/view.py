"""What a person sees of a run: a table while it goes on, lines of text, and a closing summary.

Functions of a Tally; nothing here writes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flowengine.graph.size import format_bytes
from flowengine.observe.channel_view import channel_table
from flowengine.observe.tally import Tally
from flowengine.runtime.events import CostDrifted, StageStatus, State, Status, StepDone

_COLOURS: dict[State, str] = {
    "busy": "green",
    "blocked": "magenta",
    "starved": "yellow",
    "starting": "cyan",
    "done": "dim",
}
_BAR = 16
_TIMES = ("busy_s", "blocked_s", "starved_s")
WIDE = 140
"""Columns from which on the channels stand beside the stages."""


def draw_view(tally: Tally) -> RenderableType:
    """The live view: where the run is, how fast, what every stage does, how full the pool is."""
    parts: list[RenderableType] = [_header(tally), _speed_line(tally)]
    if tally.status is not None:
        parts += [Text(), _Body(tally, tally.status), Text(), *_pool_lines(tally.status)]
    return Group(*parts)


class _Body:
    """Stages and channels: side by side where there is room, else one above the other."""

    def __init__(self, tally: Tally, status: Status) -> None:
        self._tally, self._status = tally, status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        stages = _stage_table(self._tally, self._status, wide=options.max_width >= WIDE)
        if options.max_width < WIDE:
            yield stages
            yield Text()
            yield channel_table(self._status, shown=4)
            return
        both = Table.grid(padding=(0, 4, 0, 0), expand=True)
        both.add_column(ratio=3)
        both.add_column(ratio=2)
        both.add_row(stages, channel_table(self._status, shown=max(4, len(self._status.stages))))
        yield both


def step_line(tally: Tally) -> str:
    """Where the run is, as one line of text."""
    total = tally.started.steps if tally.started else None
    count = f"{len(tally.steps)}/{total}" if total else f"{len(tally.steps)}"
    parts = [f"step {count}", f"loss {_loss(tally.loss)}"]
    if tally.samples_per_s is not None:
        parts.append(f"{_rate(tally.samples_per_s)} samples/s")
        parts.append(f"{_rate(tally.tokens_per_s)} tokens/s")
    if tally.mfu is not None:
        parts.append(f"MFU {tally.mfu:.1%}")
    if tally.left_s:
        parts.append(f"{format_duration(tally.left_s)} left")
    return ", ".join(parts)


def result_line(step: int, name: str, value: Any) -> str:
    """What an operator reported, as one line of text."""
    return f"after step {step}: {name} {format_value(value)}"


def summary_lines(tally: Tally, run_dir: Path | None) -> list[str]:
    """What to know when it is over: time, speed, loss, last results, and where the files are."""
    total = tally.started.steps if tally.started else None
    count = len(tally.steps)
    if tally.done is not None:
        first = f"done: {count} steps in {format_duration(tally.wall_s)}"
    else:
        of = f" of {total}" if total else ""
        first = f"ended early: {count}{of} steps in {format_duration(tally.wall_s)}"
    if tally.samples_per_s is not None:
        first += f", {_rate(tally.samples_per_s)} samples/s, {_rate(tally.tokens_per_s)} tokens/s"
    lines = [first]
    if tally.steps:
        lines.append(f"loss: {_loss(tally.steps[-1].loss)} last, {_loss(tally.loss)} smoothed")
    if tally.status is not None:
        shares = sorted(_busy_shares(tally.status).items(), key=lambda item: -item[1])[:3]
        lines.append("busiest: " + ", ".join(f"{name} {share:.0%}" for name, share in shares))
    if tally.fits:
        lines.append(cost_line(tally))
    for stage, results in tally.results.items():
        for name, value in results.items():
            label = name if name == stage else f"{stage} {name}"
            lines.append(f"{label}: {format_value(value)}")
    if run_dir is not None:
        lines.append(f"run directory: {run_dir}")
    return lines


def cost_line(tally: Tally) -> str:
    """How well a cost fits the packs' measured times, as one line of text."""
    last = tally.fits[-1]
    text = f"cost of packs: fitted to {last.packs} packs, residual {last.residual:.0%}"
    drifts = len(tally.drifts)
    return text + (f", drifted {drifts} {'times' if drifts > 1 else 'time'}" if drifts else "")


def drift_line(event: CostDrifted) -> str:
    """That packs take another time than before, as one line of text."""
    than = "more" if event.error > 0 else "less"
    return (
        f"after step {event.step}: packs take {abs(event.error):.0%} {than} time than the cost "
        "fitted before says; it is fitted anew"
    )


def format_value(value: Any) -> str:
    """A reported value on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_value(item)}" for key, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds, with tenths below ten seconds."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _header(tally: Tally) -> RenderableType:
    total = tally.started.steps if tally.started else None
    count = len(tally.steps)
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True)
    name = tally.started.graph if tally.started else ""
    steps = f"step {count}/{total}" if total else f"step {count}"
    bar = ProgressBar(total=total or 1, completed=count if total else 0)
    left = f"{format_duration(tally.left_s)} left" if tally.left_s is not None else ""
    row.add_row(Text(name, style="bold"), steps, bar, left or format_duration(tally.wall_s))
    return row


def _speed_line(tally: Tally) -> Text:
    if not tally.steps:
        return Text("no step is done yet", style="dim")
    last: StepDone = tally.steps[-1]
    text = Text(f"loss {_loss(tally.loss)}", style="bold")
    text.append(f" (last {_loss(last.loss)})", style="not bold dim")
    if tally.samples_per_s is not None:
        text.append(f"   {_rate(tally.samples_per_s)} samples/s", style="not bold")
        text.append(f"   {_rate(tally.tokens_per_s)} tokens/s", style="not bold")
    if tally.mfu is not None:
        text.append(f"   MFU {tally.mfu:.1%}", style="not bold")
    text.append(f"   packs {last.fill:.0%} full", style="not bold")
    if tally.fits:
        text.append(f"   their cost fits to {tally.fits[-1].residual:.0%}", style="not bold")
    return text


def _stage_table(tally: Tally, status: Status, *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, header_style="dim")
    table.add_column("stage", no_wrap=True, max_width=22, overflow="ellipsis")
    table.add_column("now", no_wrap=True)
    for heading in ("busy", "blocked", "starved"):
        table.add_column(heading, justify="right", no_wrap=True)
    if wide:
        table.add_column("could do", justify="right", no_wrap=True)
    table.add_column("waits for", ratio=1, no_wrap=True, overflow="ellipsis")
    for name, replicas in _by_stage(_steady(tally, status)).items():
        row = _stage_row(name, replicas)
        if wide:
            row.insert(-1, Text(_could_do(tally, replicas), style="dim"))
        table.add_row(*row)
    return table


def _steady(tally: Tally, status: Status) -> Status:
    """The status with the times since the first steps were done, if they are."""
    if tally.warm is None or tally.warm[0] is status:
        return status
    before = {(s.stage, s.replica): s for s in tally.warm[0].stages}
    stages = []
    for stage in status.stages:
        then = before.get((stage.stage, stage.replica), stage)
        times = {n: getattr(stage, n) - getattr(then, n) for n in _TIMES}
        stages.append(replace(stage, **times) if then is not stage else stage)
    return replace(status, stages=tuple(stages))


def _could_do(tally: Tally, replicas: list[StageStatus]) -> str:
    """Samples per second if the stage never waited, at the pace of its work so far."""
    busy_s = sum(replica.busy_s for replica in replicas)
    samples = tally.samples - (tally.warm[1] if tally.warm else 0)
    if tally.warm is None or busy_s < 0.01 * tally.wall_s or not samples:
        return "-"
    return f"{_rate(samples * len(replicas) / busy_s)}/s"


def _by_stage(status: Status) -> dict[str, list[StageStatus]]:
    stages: dict[str, list[StageStatus]] = {}
    for stage in status.stages:
        stages.setdefault(stage.stage, []).append(stage)
    return stages


def _busy_shares(status: Status) -> dict[str, float]:
    """Per stage, the part of its replicas' time that was work."""
    shares = {}
    for name, replicas in _by_stage(status).items():
        total = sum(r.busy_s + r.blocked_s + r.starved_s for r in replicas)
        shares[name] = sum(r.busy_s for r in replicas) / total if total else 0.0
    return shares


def _stage_row(name: str, replicas: list[StageStatus]) -> list[RenderableType]:
    states = [replica.state for replica in replicas]
    most = max(_COLOURS, key=states.count)
    busy, blocked, starved = (
        sum(getattr(replica, f"{state}_s") for replica in replicas)
        for state in ("busy", "blocked", "starved")
    )
    total = busy + blocked + starved
    waits = next((r.waits_for for r in replicas if r.state == most and r.waits_for), "")
    if most == "busy":
        waits = ""
    count = f" {states.count(most)}/{len(replicas)}" if len(replicas) > 1 else ""
    return [
        Text(name + (f" x{len(replicas)}" if len(replicas) > 1 else "")),
        Text(most + count, style=_COLOURS[most]),
        *(Text(f"{part / total:.0%}" if total else "-") for part in (busy, blocked, starved)),
        Text(waits, style="dim"),
    ]


def _pool_lines(status: Status) -> list[Text]:
    """A line per tier of the pool."""
    pool = status.pool
    lines = [_tier_line("pool", pool.used_bytes, pool.peak_bytes, pool.capacity_bytes)]
    if pool.disk_capacity_bytes:
        disk = (pool.disk_bytes, pool.disk_peak_bytes, pool.disk_capacity_bytes)
        lines.append(_tier_line("disk", *disk))
    return lines


def _tier_line(name: str, used: int, peak: int, capacity: int) -> Text:
    filled = round(min(1.0, used / capacity) * _BAR) if capacity else 0
    text = Text(f"{name} ", style="dim")
    text.append("█" * filled, style="cyan")
    text.append("░" * (_BAR - filled), style="dim")
    text.append(f" {format_bytes(used)} of {format_bytes(capacity)}")
    text.append(f", at most {format_bytes(peak)} so far", style="dim")
    return text


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    for suffix, scale in (("M", 1e6), ("k", 1e3)):
        if value >= 10 * scale:
            return f"{value / scale:.1f}{suffix}"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
