"""A run's curves for TensorBoard, as event files in the run directory.

Needs tensorboardX (the extra `tensorboard`), which writes them without TensorFlow or TensorBoard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flowengine.errors import FlowError
from flowengine.runtime.events import Event, Reported, RunStarted, StepDone


class TensorBoard:
    """An observer that writes scalars to `folder`, which it makes when the run starts; `close`
    completes the files."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise FlowError(
                "--tensorboard needs tensorboardX; run: pip install 'flowengine[tensorboard]'"
            ) from None
        make: Any = SummaryWriter
        self._open: Callable[[], Any] = lambda: make(str(folder), flush_secs=5)
        self._writer: Any = None

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._writer = self._open()
            case StepDone():
                for name, value in _scalars(event):
                    self._writer.add_scalar(name, value, event.step)
            case Reported():
                for name, value in _numbers(event.value, f"{event.stage}/{event.name}"):
                    self._writer.add_scalar(name, value, event.step)

    def close(self) -> None:
        """Completes the files."""
        if self._writer is not None:
            self._writer.close()


def _scalars(step: StepDone) -> Iterator[tuple[str, float]]:
    yield "train/loss", step.loss
    yield "packs/fill", step.fill
    yield "packs/number", step.packs
    if step.gradient_norm is not None:
        yield "train/gradient_norm", step.gradient_norm
    yield from ((f"learning_rate/{stage}", rate) for stage, rate in step.lr.items())
    yield from ((f"staleness/{stage}", lag) for stage, lag in step.staleness.items())


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """The numbers in a reported value, by path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{path}/{key}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
