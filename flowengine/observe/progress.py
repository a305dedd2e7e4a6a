"""Live progress of a run: a table on a terminal, lines of text anywhere else.

A view can never end a run: what goes wrong while drawing or writing (a closed pipe, a terminal
that went away) ends the view alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live

from flowengine.observe.rates import Peak
from flowengine.observe.tally import Tally
from flowengine.observe.view import draw_view, drift_line, result_line, step_line, summary_lines
from flowengine.runtime.events import CostDrifted, Event, Reported, RunStarted, StepDone

REFRESH_S = 1.0
"""Between two drawings of the table; drawing takes 7 ms of a core that the run could use."""

LINE_S = 10.0
LINES = 10
"""Without a terminal: a line at least every tenth of the steps, and at least every 10 seconds."""


class Screen(Console):
    """A console that raises when its pipe is closed; rich's own would end the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise BrokenPipeError


class Progress:
    """An observer that shows the run on `console`; as a context manager it ends with a summary."""

    def __init__(self, console: Screen | None = None, *, peak: Peak | None = None) -> None:
        self._console: Screen | None = console or Screen(highlight=False)
        self._tally = Tally(peak)
        self._live: Live | None = None
        self._run_dir: Path | None = None
        self._drawn_s = 0.0
        self._line_s = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard(self._finish)

    def __call__(self, event: Event) -> None:
        self._tally.add(event)
        self._guard(lambda: self._show(event))

    def _guard(self, show: Callable[[], None]) -> None:
        """Runs `show`; if that fails, nothing is shown from then on."""
        if self._console is None:
            return
        try:
            show()
        except Exception:
            self._console = None
            self._stop()

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            try:
                live.stop()
            except Exception:  # the same terminal has just failed
                return

    def _show(self, event: Event) -> None:
        assert self._console is not None
        match event:
            case RunStarted():
                self._run_dir = event.run_dir
                if self._console.is_terminal:
                    self._live = Live(console=self._console, auto_refresh=False, transient=True)
                    self._live.start()
                else:
                    self._print(f"{event.graph}: {len(event.stages)} stages, {event.runtime}")
            case Reported():
                self._print(result_line(event.step, event.name, event.value))
            case CostDrifted():
                self._print(drift_line(event))
            case StepDone() if self._live is None and self._line_is_due(event):
                self._line_s = event.wall_s
                self._print(step_line(self._tally))
        if self._live is not None and self._tally.wall_s - self._drawn_s >= REFRESH_S:
            self._drawn_s = self._tally.wall_s
            self._live.update(draw_view(self._tally), refresh=True)

    def _line_is_due(self, event: StepDone) -> bool:
        total = self._tally.started.steps if self._tally.started else None
        every = max(1, (total or 0) // LINES)
        tenth = total is not None and len(self._tally.steps) % every == 0
        return tenth or event.wall_s - self._line_s >= LINE_S or len(self._tally.steps) == 1

    def _finish(self) -> None:
        self._stop()
        if self._tally.started is not None:
            for line in summary_lines(self._tally, self._run_dir):
                self._print(line)

    def _print(self, line: str) -> None:
        if self._console is not None:
            wraps = not self._console.is_terminal
            self._console.print(line, markup=False, highlight=False, soft_wrap=wraps)
