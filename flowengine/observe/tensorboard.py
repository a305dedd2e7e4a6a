"""A run's curves for TensorBoard, as event files in the run directory.

Needs tensorboardX (the extra `tensorboard`), which writes them without TensorFlow or TensorBoard.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowengine.errors import FlowError
from flowengine.observe.rates import Peak, RateMeter
from flowengine.observe.scalars import numbers, rate_scalars, step_scalars
from flowengine.runtime.events import Event, Reported, RunStarted, StepDone


class TensorBoard:
    """An observer that writes scalars to `folder`, which it makes when the run starts; `close`
    completes the files."""

    def __init__(self, folder: Path, *, peak: Peak | None = None) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise FlowError(
                "--tensorboard needs tensorboardX; run: pip install 'flowengine[tensorboard]'"
            ) from None
        make: Any = SummaryWriter
        self._open: Callable[[], Any] = lambda: make(str(folder), flush_secs=5)
        self._writer: Any = None
        self._meter = RateMeter(peak)

    def __call__(self, event: Event) -> None:
        rates = self._meter.add(event)
        match event:
            case RunStarted():
                self._writer = self._open()
            case StepDone():
                for name, value in (*step_scalars(event), *rate_scalars(rates)):
                    self._writer.add_scalar(name, value, event.step)
            case Reported():
                for name, value in numbers(event.value, f"{event.stage}/{event.name}"):
                    self._writer.add_scalar(name, value, event.step)

    def close(self) -> None:
        """Completes the files."""
        if self._writer is not None:
            self._writer.close()
