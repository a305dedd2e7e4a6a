"""How a worker ended: what it said itself, or, of one that died, what it had in hand."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from flowengine.errors import (
    CheckpointError,
    FlowError,
    OutOfBudgetError,
    StageError,
    WorkerLostError,
)
from flowengine.runtime.board import Notes
from flowengine.runtime.topology import WorkerSpec

SHOWN = 16
_TOLD = {kind.__name__: kind for kind in (StageError, CheckpointError, OutOfBudgetError)}


def told_error(kind: str, text: str, samples: Sequence[int] = ()) -> FlowError:
    """The error that a worker says it ended with."""
    error = _TOLD.get(kind, StageError)(text)
    error.samples = tuple(samples)
    return error


def lost_error(worker: WorkerSpec, notes: Notes, exit_code: int | None) -> WorkerLostError:
    """The error that tells of a worker's death; notes: what the board still says of it."""
    return WorkerLostError(
        describe_death(worker, notes, exit_code),
        worker=worker.label,
        samples=notes.in_hand,
        at_work=notes.state == "busy",
    )


def describe_death(worker: WorkerSpec, notes: Notes, exit_code: int | None) -> str:
    """notes: what the board still says of the dead."""
    if exit_code is not None and exit_code < 0:
        how = f"was killed by {signal.Signals(-exit_code).name}"
        hint = "; if nobody did, look for the out-of-memory killer in the kernel's log"
    else:
        how, hint = f"ended with exit code {exit_code}", "; its own error stands above"
    samples = ", ".join(str(sample) for sample in notes.in_hand[:SHOWN])
    more = notes.num_in_hand - SHOWN
    samples += f" and {more} more" if more > 0 else ""
    hand = f" with samples {samples} in hand" if samples else " with no sample in hand"
    stage = worker.stage
    return (
        f"stage '{worker.label}' ({stage.line}): its worker {how} while {notes.state}"
        f"{hand}; the run has ended{hint}"
    )
