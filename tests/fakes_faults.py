"""Faults that wait in a process of a run for their moment, and come once.

A fault travels with the graph: whoever unpickles the graph in the process that the fault names has
it from then on. A mark, which is a file, says that it has happened, and when.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError

import flowengine.checkpoint.folder
import flowengine.checkpoint.part
from flowengine import Graph
from flowengine.api import GradientReturn, Gradients
from flowengine.api.values import Sample

SUPERVISOR = "supervisor"
ENGINE = str(Path(flowengine.checkpoint.part.__file__).parents[1])
SPILLS = 3
"""Spills that find no room before the disk has some again."""

PLACES: dict[str, tuple[Any, str]] = {
    "tensors of a part": (flowengine.checkpoint.part, "save_file"),
    "index of a part": (flowengine.checkpoint.part, "write_synced"),
    "manifest": (flowengine.checkpoint.folder, "write_synced"),
    "rename": (Path, "rename"),
}
"""Where a checkpoint can be cut short: before and after each of these calls."""


@dataclass(frozen=True)
class Fault:
    """process: a worker's label, or SUPERVISOR. kind: how it goes wrong:

    kill          at the `at`-th call of a function of the engine
    kill before   the `at`-th call of one of PLACES; kill after: likewise
    disk full     at the `at`-th call of one of PLACES
    spill full    from the `at`-th write to the disk tier on, SPILLS times
    nan           in the `at`-th gradient that a model returns
    poison        at every reading of sample `at`: no mark keeps it from coming again
    """

    process: str
    kind: str
    at: int
    mark: str
    place: str = ""

    def happened(self) -> float | None:
        """When, on the monotonic clock; None if it has not."""
        path = Path(self.mark)
        return float(path.read_text()) if path.exists() else None


class _Armed:
    """In a pickle, what arms the faults of the process that reads it."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults

    def __reduce__(self) -> tuple[Any, ...]:
        return _arm_here, (self.faults,)


def _arm_here(faults: list[Fault]) -> _Armed:
    for fault in faults:
        if fault.process == multiprocessing.current_process().name:
            arm(fault)
    return _Armed(faults)


def plant(graph: Graph, faults: list[Fault]) -> None:
    """Has the graph carry these to its workers."""
    graph.armed = _Armed(faults)  # type: ignore[attr-defined]


def arm(fault: Fault) -> None:
    """Makes this process have the fault, unless it has happened."""
    if fault.kind == "poison":
        _poison(fault)
    elif fault.happened() is None:
        if fault.kind == "kill":
            sys.setprofile(_Countdown(fault))
        elif fault.kind == "spill full":
            _fill_spills(fault)
        elif fault.kind == "nan":
            _spoil_gradient(fault)
        else:
            owner, name = PLACES[fault.place]
            setattr(owner, name, _Around(fault, getattr(owner, name)).call)


def _mark(fault: Fault) -> None:
    Path(fault.mark).write_text(repr(time.monotonic()))


def _die(fault: Fault) -> None:
    _mark(fault)
    os.kill(os.getpid(), signal.SIGKILL)


class _Countdown:
    """A profile function that kills its process."""

    def __init__(self, fault: Fault) -> None:
        self._fault, self._left = fault, fault.at

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ENGINE):
            self._left -= 1
            if self._left == 0:
                _die(self._fault)


class _Around:
    """A function of the engine, with a fault before or after one of its calls."""

    def __init__(self, fault: Fault, function: Callable[..., Any]) -> None:
        self._fault, self._function, self._left = fault, function, fault.at
        self.call = lambda *given, **named: self._call(*given, **named)

    def _call(self, *given: Any, **named: Any) -> Any:
        self._left -= 1
        if self._left or self._fault.happened() is not None:
            return self._function(*given, **named)
        if self._fault.kind == "disk full":
            _mark(self._fault)
            if self._fault.place == "tensors of a part":
                raise SafetensorError("I/O error: No space left on device (os error 28)")
            raise OSError(errno.ENOSPC, "No space left on device")
        if self._fault.kind == "kill before":
            _die(self._fault)
        result = self._function(*given, **named)
        _die(self._fault)
        return result


def _fill_spills(fault: Fault) -> None:
    pwrite, calls = os.pwrite, 0

    def write(*given: Any) -> int:
        nonlocal calls
        calls += 1
        if fault.at <= calls < fault.at + SPILLS:
            _mark(fault)
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(*given)

    os.pwrite = write


def _spoil_gradient(fault: Fault) -> None:
    process, calls = GradientReturn.process, 0

    def spoil(self: GradientReturn, gradients: Gradients) -> Gradients:
        nonlocal calls
        calls += 1
        returned = process(self, gradients)
        if calls != fault.at:
            return returned
        _mark(fault)
        return replace(returned, rows=torch.full_like(returned.rows, torch.nan))

    GradientReturn.process = spoil  # type: ignore[method-assign]


def _poison(fault: Fault) -> None:
    from fakes import MixedSamples

    read = MixedSamples.read

    def die(self: MixedSamples, index: int) -> Sample:
        if index == fault.at and self.seed == 0:
            _die(fault)
        return read(self, index)

    MixedSamples.read = die  # type: ignore[method-assign]
