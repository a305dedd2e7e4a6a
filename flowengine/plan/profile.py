"""A profile: what a graph's operators were measured to cost on this machine, as a Parquet file.

The table has a row per measured pack: stage, what (forward or backward), samples, rows, squares (of
rows per sample), seconds, and kept_bytes (activations; forward alone). Everything that was fitted
from it, and what else was measured, stands in the file's metadata as JSON: the fields of Profile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flowengine.errors import PlanError
from flowengine.graph import Graph
from flowengine.graph.description import StageSpec
from flowengine.plan.costs import Memory, Parallel, StageCosts
from flowengine.plan.deployment import StepWork
from flowengine.plan.load import Line
from flowengine.plan.planner import Overheads
from flowengine.plan.work import modality_of_load

KEY = b"flowengine.profile"

SCHEMA = pa.schema(
    [
        ("stage", pa.string()),
        ("what", pa.string()),
        ("samples", pa.int64()),
        ("rows", pa.float64()),
        ("squares", pa.float64()),
        ("seconds", pa.float64()),
        ("kept_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True)
class StageProfile:
    """One stage with weights. forward, backward: seconds of a pack, the engine's own part included.

    update_s: of the optimizer. kept_bytes: activations of a pack. weights_bytes: with gradients and
    the optimizer's. residual: the fit's root of the mean squared relative error.
    """

    forward: Line
    backward: Line
    update_s: float
    kept_bytes: Line
    weights_bytes: int
    residual: float

    @property
    def attention_share(self) -> Line:
        """The part of a pack's cost that grows with the squares of its samples."""
        return Line(square=self.forward.square + self.backward.square)


@dataclass(frozen=True)
class Profile:
    """read: seconds to read a pack's samples, over its tokens; plan_s: to plan a step; join: a
    pack's passing on. slowdown: flowengine.plan.clock.Clock. data: what flowengine.plan.data says.
    """

    graph: str
    stages: Mapping[str, StageProfile]
    read: Line
    plan_s: float
    join: Line
    cores: int
    threads: int
    slowdown: tuple[float, ...]
    data: Mapping[str, Any]
    measured: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    def write(self, path: Path) -> None:
        """As Parquet."""
        fields = {key: value for key, value in asdict(self).items() if key != "measured"}
        table = pa.Table.from_pylist(list(self.measured), schema=SCHEMA)
        pq.write_table(table.replace_schema_metadata({KEY: json.dumps(fields)}), path)


def read_profile(path: Path) -> Profile:
    """The profile in this file; PlanError where it is none."""
    try:
        table = pq.read_table(path, schema=None)
        fields = json.loads(table.schema.metadata[KEY])
        stages = {}
        for name, stage in fields.pop("stages").items():
            for key in ("forward", "backward", "kept_bytes"):
                stage[key] = Line(**stage[key])
            stages[name] = StageProfile(**stage)
        read, join = Line(**fields.pop("read")), Line(**fields.pop("join"))
        fields["slowdown"] = tuple(fields["slowdown"])
        return Profile(stages=stages, read=read, join=join, measured=table.to_pylist(), **fields)
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowInvalid) as error:
        raise PlanError(
            f"{path}: is no profile ({type(error).__name__}: {error}); expected a file that "
            "flowengine profile wrote"
        ) from None


@dataclass(frozen=True)
class Profiled:
    """Costs from a profile, for this machine's cores: a replica is a process."""

    graph: Graph
    profile: Profile
    steps: Sequence[StepWork]
    cores: int
    origin: str = "profile"

    @property
    def value_bytes(self) -> int:
        return 8 if self.graph.dtype == "float64" else 4

    @property
    def memory_bytes(self) -> float:
        """An even part of the machine's memory."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / self.cores

    def overheads(self) -> Overheads:
        """Reading, planning and joining, and that all share the cores."""
        known = self.profile
        return {
            "read": known.read,
            "plan_s": known.plan_s,
            "join": known.join,
            "cores": self.cores,
            "slowdown": known.slowdown,
        }

    def layouts(self, stage: StageSpec) -> list[Parallel]:
        """A replica in a process of one core."""
        del stage
        return [Parallel()]

    def costs(self, stage: StageSpec, parallel: Parallel) -> StageCosts:
        del parallel
        known = self.profile.stages.get(stage.name)
        if known is None:
            raise PlanError(
                f"profile: of graph '{self.profile.graph}', has no {stage}; it has "
                f"{', '.join(self.profile.stages)}. Profile this graph"
            )
        modality = modality_of_load(stage)
        loads = [pack.loads[modality] for step in self.steps for pack in step.packs]
        kept = max(known.kept_bytes.seconds(load) for load in loads)
        return StageCosts(
            modality=modality,
            forward=known.forward,
            backward=known.backward,
            update_s=known.update_s,
            memory=Memory(known.weights_bytes, kept),
        )
