"""Exit codes of the command `flowengine`; `flowengine --help` lists them."""

from __future__ import annotations

from flowengine.errors import (
    CheckpointError,
    FlowError,
    GraphError,
    InterruptedRunError,
    OutOfBudgetError,
    PlanError,
    StageError,
    StallError,
    WorkerLostError,
)

FAILED = 1
USAGE = 2
REFUSED = 3
STALLED = 4
WORKER_LOST = 5
NO_CHECKPOINT = 6
OUT_OF_BUDGET = 7
INTERRUPTED = 130

MEANINGS = {
    0: "done",
    FAILED: "an operator failed",
    USAGE: "the command line was wrong",
    REFUSED: "the graph was refused before the run",
    STALLED: "no stage could progress",
    WORKER_LOST: "a worker process died",
    NO_CHECKPOINT: "the checkpoint is missing, damaged, or another graph's",
    OUT_OF_BUDGET: "disk, memory or file descriptors ran out",
    INTERRUPTED: "interrupted (Ctrl-C)",
}

_CODES: tuple[tuple[type[FlowError], int], ...] = (
    (GraphError, REFUSED),
    (PlanError, REFUSED),
    (CheckpointError, NO_CHECKPOINT),
    (InterruptedRunError, INTERRUPTED),
    (StallError, STALLED),
    (OutOfBudgetError, OUT_OF_BUDGET),
    (WorkerLostError, WORKER_LOST),
    (StageError, FAILED),
)


def exit_code(error: FlowError) -> int:
    """The exit code that tells this error; FAILED where no other fits."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
