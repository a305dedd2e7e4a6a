"""Signals: the first asks a run to end at the next step's end, the second ends it now."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_SAID = b"\nending after the steps that have begun, with a checkpoint; once more to end now\n"


class Interrupt:
    """came: whether there was a signal."""

    def __init__(self) -> None:
        self.came = False
        self._dealt_with = False

    def take(self) -> bool:
        """True once, after the first signal."""
        if not self.came or self._dealt_with:
            return False
        self._dealt_with = True
        return True

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of SIGINT and SIGTERM."""
        if self.came:
            raise KeyboardInterrupt
        self.came = True
        os.write(2, _SAID)


def describe_interrupt(steps: int, run_dir: Path) -> str:
    """What became of a run that a signal ended."""
    return f"interrupted after {steps} steps; go on with --resume {run_dir}"


@contextmanager
def catching_signals() -> Iterator[Interrupt]:
    """Within, SIGINT and SIGTERM are caught; outside the main thread none ever comes."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, interrupt.on_signal) for number in numbers}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
