"""Keeps a stage's time by state: busy, blocked on something, or starved of something."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from flowengine.errors import FlowError, StageError
from flowengine.runtime.stage import Stage


class Clockwork:
    """Runs a stage's pieces of work and books the time between them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.since_s = clock()
        self.seconds = {"busy": 0.0, "blocked": 0.0, "starved": 0.0}
        self.causes: dict[str, float] = defaultdict(float)
        self._idle_state, self._idle_on = "starved", "its start"

    def run(self, stage: Stage) -> bool:
        """One `advance` of the stage: its time counts as busy if it did anything, and the time
        before it as whatever the stage then waited for."""
        began = self._clock()
        try:
            moved = stage.advance()
        except Exception as error:
            raise StageError(describe_failure(stage, error)) from error
        self._settle(began)
        if moved:
            self.since_s = self._clock()
            self.seconds["busy"] += self.since_s - began
        else:
            self._idle_state, self._idle_on = stage.waits.state, stage.waits.on
        return moved

    def _settle(self, now: float) -> None:
        """Books the time since the last look as idle."""
        idle = now - self.since_s
        if self._idle_state in self.seconds and idle > 0:
            self.seconds[self._idle_state] += idle
            self.causes[f"{self._idle_state}: {self._idle_on}"] += idle
        self.since_s = now


def describe_failure(stage: Stage, error: BaseException) -> str:
    """What failed, where in the graph, on which samples, and on which line of the user's code."""
    worker = stage.site.worker
    what = str(error) if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parent)
    theirs = [f for f in frames if not f.filename.startswith(ours) and "/torch/" not in f.filename]
    where = f" at {Path(theirs[-1].filename).name}:{theirs[-1].lineno}" if theirs else ""
    samples = ", ".join(str(sample) for sample in stage.in_hand[:8])
    more = f" and {len(stage.in_hand) - 8} more" if len(stage.in_hand) > 8 else ""
    hand = f" with samples {samples}{more} in hand" if samples else ""
    return f"stage '{worker.label}' ({worker.stage.line}) failed{hand}{where}: {what}"
