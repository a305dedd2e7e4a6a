"""A run's curves for Weights & Biases, as its own client writes them into the run directory.

Needs wandb (the extra `wandb`). Where the curves go is the client's business, by its environment:
WANDB_MODE=offline keeps them in the run directory, for `wandb sync`; WANDB_PROJECT names a project.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowengine.errors import FlowError
from flowengine.observe.rates import Peak, RateMeter
from flowengine.observe.scalars import numbers, rate_scalars, step_scalars
from flowengine.runtime.events import (
    Event,
    LeftOut,
    Reported,
    Restarted,
    RunDone,
    RunFailed,
    RunStarted,
    StepDone,
)


class WeightsAndBiases:
    """An observer that logs to wandb; `close` ends its run, as failed unless the run was done.

    config: what is shown of the graph. Steps that are trained again after a restart are logged
    again, under the step's number in `step`, the axis of all curves.
    """

    def __init__(self, run_dir: Path, *, config: dict[str, Any], peak: Peak | None) -> None:
        try:
            import wandb
        except ImportError:
            raise FlowError("--wandb needs wandb; run: pip install 'flowengine[wandb]'") from None
        init: Callable[..., Any] = wandb.init
        self._open: Callable[[str], Any] = lambda name: init(
            project=os.environ.get("WANDB_PROJECT", "flowengine"),
            name=run_dir.name,
            group=name,
            dir=str(run_dir),
            config=config,
            save_code=False,
        )
        self._run: Any = None
        self._meter = RateMeter(peak)
        self._done = False

    def __call__(self, event: Event) -> None:
        rates = self._meter.add(event)
        match event:
            case RunStarted():
                self._run = self._open(event.graph)
                self._run.define_metric("step")
                self._run.define_metric("*", step_metric="step")
            case StepDone():
                scalars = dict((*step_scalars(event), *rate_scalars(rates)))
                self._run.log({"step": event.step, **scalars})
            case Reported():
                found = dict(numbers(event.value, f"{event.stage}/{event.name}"))
                if found:
                    self._run.log({"step": event.step, **found})
            case Restarted():
                self._run.log({"step": event.step, "run/restarts": event.restarts})
            case LeftOut():
                self._run.alert("dead letter", f"sample {event.sample}: {event.reason}")
            case RunDone():
                self._done = not event.interrupted
            case RunFailed():
                self._run.summary["error"] = event.error

    def close(self) -> None:
        """Ends wandb's run and waits until it has written everything."""
        if self._run is not None:
            self._run.finish(exit_code=0 if self._done else 1)
