"""What a run tells its observers, in the order it happens.

A runtime calls `observe(event)` from one thread; an observer must not block for long. Times are
seconds since the run started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

State = Literal["starting", "starved", "busy", "blocked", "done", "idle", "stopped"]
"""idle: starved, and what it reads has ended. stopped: its process is, by a signal."""


@dataclass(frozen=True)
class RunStarted:
    """The graph passed its checks and its workers are being started."""

    graph: str
    runtime: str
    run_dir: Path
    steps: int | None
    stages: tuple[str, ...]


@dataclass(frozen=True)
class StepDone:
    """A training step's loss is known.

    loss: mean over the step's target tokens. tokens, targets: of the step's packs; fill: tokens
    over the packs' room. gradient_norm: before clipping, None without clip_norm. staleness: per
    encoder, the largest age of a consumed feature in optimizer steps. lr: per trained stage.
    deferred: samples that were left to the next step. cost: the measured coefficients that the
    packs were planned with, None where the packer's own are used.
    """

    step: int
    wall_s: float
    loss: float
    samples: int
    tokens: int
    targets: int
    packs: int
    fill: float
    gradient_norm: float | None
    staleness: Mapping[str, int]
    lr: Mapping[str, float]
    deferred: int = 0
    cost: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Effort:
    """What one stage replica computed for a training step; of a trained stage it comes before the
    step's StepDone.

    modality: of an encoder, else "". items: media of it that were encoded. flops: operations of the
    forward and the backward (flowengine.runtime.flops); 0 where they are not counted.
    """

    stage: str
    replica: int
    step: int
    modality: str
    items: int
    flops: int


@dataclass(frozen=True)
class Reported:
    """An operator called `context.report`; step: training steps done before it."""

    stage: str
    step: int
    wall_s: float
    name: str
    value: Any


@dataclass(frozen=True)
class CatalogueRows:
    """Pool entries that were freed, column by column (names as in flowengine.pool.catalogue)."""

    columns: Mapping[str, list[Any]]


@dataclass(frozen=True)
class SpanRows:
    """What one stage replica did and when, column by column (flowengine.runtime.spans)."""

    stage: str
    replica: int
    columns: Mapping[str, list[Any]]


@dataclass(frozen=True)
class PackRows:
    """The packs of one round as planned, column by column (flowengine.observe.tables.PACKS)."""

    columns: Mapping[str, list[Any]]


@dataclass(frozen=True)
class StageStatus:
    """One stage replica now, and its time so far by state.

    waits_for: in words, what it is starved of or blocked on. causes: seconds by such a cause, once
    the run is over. since_s: when it came into this state. in_hand: the samples it works on, or
    worked on last. pid: of its process.
    """

    stage: str
    replica: int
    state: State
    waits_for: str
    busy_s: float
    blocked_s: float
    starved_s: float
    causes: Mapping[str, float] = field(default_factory=dict)
    since_s: float = 0.0
    in_hand: tuple[int, ...] = ()
    pid: int = 0


@dataclass(frozen=True)
class PoolStatus:
    """Payload bytes in the pool now, at most so far, and their bound: in host memory, and on disk
    where the pool has that tier (else 0)."""

    used_bytes: int
    peak_bytes: int
    capacity_bytes: int
    disk_bytes: int = 0
    disk_peak_bytes: int = 0
    disk_capacity_bytes: int = 0


@dataclass(frozen=True)
class ChannelStatus:
    """Rows and bytes on a channel now, those included that its reader still works on; and their
    bounds. producer, consumer: stages with their replica, as in "eye[1]"."""

    producer: str
    consumer: str
    port: str
    items: int
    bound_items: int
    num_bytes: int
    bound_bytes: int


@dataclass(frozen=True)
class Status:
    """A look at all stages, several times a second."""

    wall_s: float
    stages: tuple[StageStatus, ...]
    pool: PoolStatus
    channels: tuple[ChannelStatus, ...] = ()


@dataclass(frozen=True)
class CheckpointDone:
    """A checkpoint after `step` training steps is whole and on the disk."""

    step: int
    wall_s: float
    path: Path


@dataclass(frozen=True)
class Restarted:
    """A worker died, and the run goes on behind `step` training steps; restarts so far."""

    step: int
    wall_s: float
    restarts: int
    reason: str


@dataclass(frozen=True)
class LeftOut:
    """A sample became a dead letter: it is left out of training from here on."""

    sample: int
    wall_s: float
    stage: str
    reason: str


@dataclass(frozen=True)
class CostFitted:
    """A cost was fitted to how long packs took: in seconds, linear * tokens + quadratic *
    tokens**2 + constant for each sample.

    step: the one behind the last pack. residual: the root of the mean squared error, as a part of
    the mean time. packs: how many.
    """

    step: int
    wall_s: float
    linear: float
    quadratic: float
    constant: float
    residual: float
    packs: int


@dataclass(frozen=True)
class CostDrifted:
    """The fitted cost no longer tells how long packs take; a new one is on its way.

    error: the median of (measured / expected - 1) over the latest packs.
    """

    step: int
    wall_s: float
    error: float


@dataclass(frozen=True)
class RunDone:
    """The run trained its last step, or the last it was asked for by a signal (interrupted).

    status: the final one. weights: file per stage.
    """

    wall_s: float
    start_s: float
    status: Status
    weights: Mapping[str, str]
    interrupted: bool = False


@dataclass(frozen=True)
class RunFailed:
    """The run ended early; the error is raised to the caller as well."""

    wall_s: float
    error: str


Rows = CatalogueRows | SpanRows | PackRows
Event = (
    RunStarted
    | StepDone
    | Effort
    | Reported
    | Rows
    | Status
    | CheckpointDone
    | Restarted
    | LeftOut
    | CostFitted
    | CostDrifted
    | RunDone
    | RunFailed
)
Observer = Callable[[Event], None]
