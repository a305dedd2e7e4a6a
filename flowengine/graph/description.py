"""What a graph says: stages, the streams between them, the pool, feedback and evaluation.

Plain values, made by `Graph` and read by the checks and the runtimes. A stage's inputs are either
streams or the pool; several streams on one port are merged, several ports are joined by sample id.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from flowengine.api import Encoder, Operator, Optimizer, Source, Trainable
from flowengine.graph.dtype import DType
from flowengine.graph.ports import Signature
from flowengine.graph.size import parse_bytes

POOL = "pool"
Activations = Literal["stash", "recompute"]


@dataclass(frozen=True)
class Skip:
    """Leave out up to `limit` bad samples of a stage; one more ends the run."""

    limit: int


BadSamples = Literal["raise", "dead-letter"] | Skip
"""What becomes of a sample that an operator raises SampleError for."""


@dataclass(frozen=True)
class Step:
    """One global batch: the next `samples` samples of the source."""

    samples: int


@dataclass(frozen=True)
class Credits:
    """The bound of each of a stage's input channels: rows, and bytes of their metadata and small
    payloads (large ones live in the pool, which has its own bound)."""

    items: int = 1024
    size: int | str = "16 MiB"

    @property
    def num_bytes(self) -> int:
        return parse_bytes(self.size)


@dataclass(frozen=True)
class Gang:
    """How many ranks (processes) run one copy of a stage together, as one torch.distributed group.

    data: ranks that take packs in turn, the weights sharded over them (FSDP2). tensor: ranks that
    share each matrix product (tensor parallel). Ranks are numbered row by row over (data, tensor).
    """

    data: int = 1
    tensor: int = 1

    @property
    def size(self) -> int:
        """All ranks."""
        return self.data * self.tensor

    def __str__(self) -> str:
        return f"{self.data} x {self.tensor}"


@dataclass(frozen=True)
class Endpoint:
    """One output port of a stage; the pool's only port is ("pool", "out")."""

    stage: str
    port: str

    def __str__(self) -> str:
        return self.stage if self.port == "out" else f"{self.stage}.{self.port}"


@dataclass
class StageSpec:
    """A stage as described. `line` is where the graph file made it. `threads` of each worker are
    set by a plan; None leaves them to the runtime."""

    name: str
    what: Operator | Callable[..., Any]
    signature: Signature
    inputs: dict[str, list[Endpoint]]
    line: str
    replicas: int = 1
    gang: Gang = field(default_factory=Gang)
    optimizer: Optimizer | None = None
    freeze: bool = False
    activations: Activations = "stash"
    window: int | None = None
    threads: int | None = None
    credits: Credits = field(default_factory=Credits)
    dtype: DType | None = None
    bad_samples: BadSamples = "raise"

    @property
    def trains(self) -> bool:
        """Whether this stage has weights that the run updates."""
        return isinstance(self.what, Trainable) and not self.freeze

    @property
    def spares(self) -> float:
        """How many bad samples this stage may leave out."""
        if isinstance(self.bad_samples, Skip):
            return self.bad_samples.limit
        return math.inf if self.bad_samples == "dead-letter" else 0

    @property
    def num_workers(self) -> int:
        """How many processes run it."""
        return self.replicas * self.gang.size

    @property
    def ways(self) -> int:
        """How many of its workers take packs in turn."""
        return self.replicas * self.gang.data

    @property
    def producers(self) -> list[Endpoint]:
        return [endpoint for endpoints in self.inputs.values() for endpoint in endpoints]

    def __str__(self) -> str:
        return f"stage '{self.name}' ({self.line})"


@dataclass
class PoolSpec:
    """Rows of these streams, joined by sample id; `capacity` bounds all payload bytes of a run in
    host memory, `disk` those on disk."""

    inputs: list[Endpoint]
    capacity: int
    line: str
    disk: int = 0


@dataclass
class FeedbackSpec:
    """The way of the gradients: from an objective's port back to an encoder."""

    what: Operator
    source: Endpoint
    to: str
    line: str


@dataclass
class EvaluationSpec:
    """Held-out samples that pass the same stages without training."""

    source: Source[Any]
    through: str
    samples: int
    every: int
    line: str


@dataclass(frozen=True)
class CheckpointSpec:
    """A checkpoint after every `every` steps (0: not in between) and after the last; the newest
    `keep_last` are kept."""

    every: int
    keep_last: int
    line: str


def modality_of(stage: StageSpec) -> str | None:
    """The modality an encoder stage reads."""
    return stage.what.modality if isinstance(stage.what, Encoder) else None
