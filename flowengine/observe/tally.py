"""Running totals of a run, kept from its events: what the report and the progress view say."""

from __future__ import annotations

from typing import Any

from flowengine.observe.rates import Peak, RateMeter
from flowengine.runtime.events import (
    CheckpointDone,
    CostDrifted,
    CostFitted,
    Effort,
    Event,
    LeftOut,
    Reported,
    Restarted,
    RunDone,
    RunFailed,
    RunStarted,
    Status,
    StepDone,
)

SMOOTHING = 0.9
"""Weight of the past in the smoothed loss: a mean over about the last ten steps."""


WARM_STEPS = 2
"""After so many, nothing is compiled or started any more."""


class Tally:
    """Feed it every event with `add`; read its fields at any time.

    loss: smoothed, corrected for its start. results: the last report by stage and name. warm: a
    look after the first steps, and the samples trained by then: what came later is steady. mfu: of
    the last step, all stages together, where `peak` is known and operations are counted.
    """

    def __init__(self, peak: Peak | None = None) -> None:
        self.mfu: float | None = None
        self._meter = RateMeter(peak) if peak is not None else None
        self.started: RunStarted | None = None
        self.steps: list[StepDone] = []
        self.efforts: list[Effort] = []
        self.reports: list[Reported] = []
        self.results: dict[str, dict[str, Any]] = {}
        self.status: Status | None = None
        self.done: RunDone | None = None
        self.error: str | None = None
        self.checkpoints: list[CheckpointDone] = []
        self.restarts: list[Restarted] = []
        self.dead_letters: dict[int, LeftOut] = {}
        self.fits: list[CostFitted] = []
        self.drifts: list[CostDrifted] = []
        self.wall_s = 0.0
        self.samples = 0
        self.tokens = 0
        self.warm: tuple[Status, int] | None = None
        self._weighted_loss = 0.0
        self._weight = 0.0

    def add(self, event: Event) -> None:
        """Takes one more event in."""
        rates = self._meter.add(event) if self._meter is not None else None
        if rates is not None:
            self.mfu = rates.mfu.get("total")
        match event:
            case RunStarted():
                self.started = event
            case StepDone():
                self._add_step(event)
            case Effort():
                self.efforts.append(event)
            case Reported():
                self.reports.append(event)
                self.results.setdefault(event.stage, {})[event.name] = event.value
            case Status():
                self.status = event
                if self.warm is None and len(self.steps) >= WARM_STEPS:
                    self.warm = (event, self.samples)
            case Restarted():
                self._go_back(event)
            case LeftOut():
                self.dead_letters[event.sample] = event
            case CostFitted():
                self.fits.append(event)
            case CostDrifted():
                self.drifts.append(event)
            case CheckpointDone():
                self.checkpoints.append(event)
            case RunDone():
                self.done, self.status = event, event.status
            case RunFailed():
                self.error = event.error
        self.wall_s = max(self.wall_s, getattr(event, "wall_s", 0.0))

    def _go_back(self, event: Restarted) -> None:
        """Forgets what is trained again."""
        self.restarts.append(event)
        steps = [step for step in self.steps if step.step < event.step]
        self.efforts = [effort for effort in self.efforts if effort.step < event.step]
        self.reports = [report for report in self.reports if report.step < event.step]
        self.steps, self.samples, self.tokens = [], 0, 0
        self._weighted_loss = self._weight = 0.0
        self.warm = None
        for step in steps:
            self._add_step(step)

    def _add_step(self, step: StepDone) -> None:
        self.steps.append(step)
        self.samples += step.samples
        self.tokens += step.tokens
        self._weighted_loss = SMOOTHING * self._weighted_loss + (1 - SMOOTHING) * step.loss
        self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)

    @property
    def loss(self) -> float | None:
        return self._weighted_loss / self._weight if self.steps else None

    @property
    def samples_per_s(self) -> float | None:
        return self._rate(self.samples - self.steps[0].samples) if self.steps else None

    @property
    def tokens_per_s(self) -> float | None:
        return self._rate(self.tokens - self.steps[0].tokens) if self.steps else None

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step at the rate so far; None where that is not known."""
        total = self.started.steps if self.started else None
        if total is None or len(self.steps) < 2:
            return None
        step_s = (self.steps[-1].wall_s - self.steps[0].wall_s) / (len(self.steps) - 1)
        return max(0.0, (total - len(self.steps)) * step_s - (self.wall_s - self.steps[-1].wall_s))

    def _rate(self, count: int) -> float | None:
        """Per second over the steps after the first, whose time holds the start of the workers."""
        if len(self.steps) < 2:
            return None
        elapsed_s = self.steps[-1].wall_s - self.steps[0].wall_s
        return count / elapsed_s if elapsed_s > 0 else None
