"""What a person sees while a run goes on, and at its end."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowengine.observe import Progress
from flowengine.observe.progress import Screen
from flowengine.observe.rates import Peak
from flowengine.observe.tally import Tally
from flowengine.observe.view import format_duration, format_value, step_line
from flowengine.runtime.events import (
    ChannelStatus,
    CostDrifted,
    CostFitted,
    Effort,
    Event,
    PoolStatus,
    Reported,
    RunDone,
    RunFailed,
    RunStarted,
    StageStatus,
    State,
    Status,
    StepDone,
)


def status(wall_s: float) -> Status:
    replicas: list[tuple[int, State, str]] = [(0, "busy", ""), (1, "starved", "gradients")]
    stages = [StageStatus("pages", 0, "blocked", "room in 'eye'", 1.0, 8.0, 1.0)]
    stages += [StageStatus("eye", r, state, on, 9.0, 0.0, 1.0) for r, state, on in replicas]
    stages += [StageStatus("a_stage_with_quite_a_long_name", 0, "starting", "x" * 99, 0, 0, 0)]
    channels = (ChannelStatus("pages", "eye[1]", "sample", 48, 64, 100, 2**20),)
    disk = (2**20, 3 * 2**20, 4 * 2**20)
    pool = PoolStatus(64 * 2**20, 96 * 2**20, 128 * 2**20, *disk)
    return Status(wall_s, tuple(stages), pool, channels)


def run(steps: int, *, total: int | None, step_s: float = 1.0) -> Iterator[Event]:
    """A run of `steps` steps, of which `total` were asked for."""
    yield RunStarted("docqa", "local", Path("runs/docqa-1"), total, ("pages", "eye"))
    for number in range(steps):
        wall_s = (number + 1) * step_s
        yield status(wall_s)
        yield StepDone(number, wall_s, 2.0, 64, 6400, 640, 4, 0.9, None, {}, {})
    if steps == total:
        yield Reported("score", steps, steps * step_s, "accuracy", {"overall": 0.75, "n": 8})
        yield RunDone(steps * step_s, 0.1, status(steps * step_s), {})
    else:
        yield RunFailed(steps * step_s, "no")


def shown(events: Iterator[Event], *, terminal: bool, width: int = 80) -> str:
    stream = io.StringIO()
    console = Screen(
        file=stream, force_terminal=terminal, width=width, height=40, color_system=None
    )
    with Progress(console) as progress:
        for event in events:
            progress(event)
    return stream.getvalue()


@pytest.mark.parametrize(("steps", "expected"), [(1, 1), (7, 7), (40, 11), (1000, 11)])
def test_lines_without_a_terminal(steps: int, expected: int) -> None:
    """Away from a terminal there is a line for the first step and for every tenth of them all."""
    text = shown(run(steps, total=steps, step_s=0.01), terminal=False)
    assert sum(line.startswith("step ") for line in text.splitlines()) == expected
    assert f"step {steps}/{steps}, loss 2.0000" in text


def test_lines_of_a_run_without_end() -> None:
    """Where the number of steps is not known, there is a line every ten seconds."""
    text = shown(run(31, total=None), terminal=False)
    assert [line.split(",")[0] for line in text.splitlines() if line.startswith("step")] == [
        "step 1",
        "step 11",
        "step 21",
        "step 31",
    ]


def test_summary() -> None:
    """At the end stand time, speed, loss, busiest stages, results and the run directory."""
    text = shown(run(20, total=20), terminal=False)
    assert text.splitlines()[-5:] == [
        "done: 20 steps in 20 s, 64 samples/s, 6400 tokens/s",
        "loss: 2.0000 last, 2.0000 smoothed",
        "busiest: eye 90%, pages 10%, a_stage_with_quite_a_long_name 0%",
        "score accuracy: overall 0.75, n 8",
        "run directory: runs/docqa-1",
    ]


def test_summary_of_a_failed_run() -> None:
    """A run that ended early says after how many steps, and where its files are."""
    text = shown(run(3, total=20), terminal=False)
    assert "ended early: 3 of 20 steps in 3.0 s" in text
    assert text.splitlines()[-1] == "run directory: runs/docqa-1"


@pytest.mark.parametrize("width", [80, 120, 160])
def test_table_on_a_terminal(width: int) -> None:
    """On a terminal a table shows steps, loss, every stage and the pool, within the width."""
    text = shown(run(10, total=20), terminal=True, width=width)
    for expected in (
        "step 9/20",
        "10 s left",
        "loss 2.0000 (last 2.0000)",
        "64 samples/s",
        "eye x2",
        "busy 1/2",
        "room in 'eye'",
        "64 MiB of 128 MiB, at most 96 MiB so far",
        "1 MiB of 4 MiB, at most 3 MiB so far",
        "pages > eye[1]",
        "48/64",
    ):
        assert expected in text
    frame = text.split("\x1b[")[-40:]
    assert max(len(line) for part in frame for line in part.splitlines()) <= width + 4


class Closed(io.StringIO):
    """A stream that fails from the beginning, as a closed pipe does."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(text)


@pytest.mark.parametrize("terminal", [True, False])
def test_closed_stdout(terminal: bool) -> None:
    """A view that cannot be written ends in silence; the run goes on."""
    with Progress(Screen(file=Closed(), force_terminal=terminal)) as progress:
        for event in run(3, total=3):
            progress(event)


def test_nothing_started() -> None:
    """A run that was never started has no summary."""
    assert shown(iter(()), terminal=False) == ""


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.7, "1 min 00 s"), (3725, "1 h 02 min")],
)
def test_durations(seconds: float, expected: str) -> None:
    """Times are rounded to what a person reads."""
    assert format_duration(seconds) == expected


def test_values_on_one_line() -> None:
    """Reported values are shown on one line, numbers with four digits."""
    assert format_value({"a": 0.123456, "b": {"c": "x"}}) == "a 0.1235, b c x"


def test_the_cost_of_packs_and_its_drift() -> None:
    """A drift has a line of its own, and the summary says how well the last cost fits."""

    def costs() -> Iterator[Event]:
        yield from run(3, total=4)
        yield CostFitted(2, 3.0, 1e-6, 1e-10, 1e-5, residual=0.04, packs=64)
        yield CostDrifted(3, 3.5, error=0.35)

    text = shown(costs(), terminal=False)
    assert "after step 3: packs take 35% more time than the cost fitted before says" in text
    assert "cost of packs: fitted to 64 packs, residual 4%, drifted 1 time" in text


def test_the_mfu_is_shown_where_it_is_known() -> None:
    """Of the last step: its operations over its seconds and the peak."""
    plain, counting = Tally(), Tally(Peak(1000.0, "stated"))
    for event in run(3, total=None):
        if isinstance(event, StepDone):
            for tally in (plain, counting):
                tally.add(Effort("eye", 0, event.step, "image", 4, 250))
        for tally in (plain, counting):
            tally.add(event)
    assert step_line(counting).endswith("tokens/s, MFU 25.0%")
    assert "MFU" not in step_line(plain)
