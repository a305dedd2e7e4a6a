"""A graph's stages with a layout and costs each: what is simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flowengine.plan.costs import Parallel, StageCosts
from flowengine.plan.load import TOKENS, Line, Load

Handover = Literal["pool", "pack", "step"]
"""When encoders go on: with room in the pool; when the objective has used a replica's last pack; or
when it has used the step's, and features are handed over a step at a time."""


Key = tuple[int, int]
"""A pack: step, index within the step."""


@dataclass(frozen=True)
class PackWork:
    """A pack, as far as it costs: loads by modality, TOKENS included. ids: its samples'."""

    loads: Mapping[str, Load]
    ids: Sequence[int]
    tokens: int

    @property
    def samples(self) -> int:
        return len(self.ids)

    @property
    def whole(self) -> Load:
        """The load in tokens."""
        return self.loads[TOKENS]


@dataclass(frozen=True)
class StepWork:
    """A step's packs in the plan's order."""

    packs: Sequence[PackWork]

    @property
    def samples(self) -> int:
        return sum(pack.samples for pack in self.packs)

    @property
    def tokens(self) -> int:
        return sum(pack.tokens for pack in self.packs)

    @cached_property
    def terms(self) -> Mapping[str, NDArray[np.float64]]:
        """By modality, what a Line is multiplied with, for every pack: float64 [packs, 4]."""
        return {
            name: np.array([pack.loads[name].terms for pack in self.packs])
            for name in (self.packs[0].loads if self.packs else ())
        }


@dataclass(frozen=True)
class Deployed:
    """A trainable stage: how it is laid out, and what work takes there.

    share_bytes: of the pool, for each replica's features. row_bytes: of a feature row. window:
    packs in flight at most (None: no bound but the share).
    """

    name: str
    parallel: Parallel
    costs: StageCosts
    share_bytes: float = float("inf")
    row_bytes: int = 0
    window: int | None = None


@dataclass(frozen=True)
class Deployment:
    """What runs where, and by which rules.

    encoders: in the graph's order. read: seconds to read a pack's samples, over its tokens; plan_s:
    to plan a step; join: to join a pack. credits: rows that the source may be ahead of the packer.
    staleness: as in the graph. together: no stage steps its optimizer before all have their
    gradients (clipping by the norm of everything). handover: Handover. barrier: encoders wait for
    the step's end, frozen ones too. colocated: the encoders' work is done by the objective's first
    part, in its own layout. cores: that all stages share, None where every part has a device of
    its own; slowdown: flowengine.plan.clock.Clock.
    """

    encoders: tuple[Deployed, ...]
    objective: Deployed
    source: str = "source"
    packer: str = "packer"
    read: Line = field(default_factory=Line)
    plan_s: float = 0.0
    join: Line = field(default_factory=Line)
    credits: int = 1024
    staleness: int = 0
    together: bool = True
    handover: Handover = "pool"
    barrier: bool = False
    colocated: bool = False
    cores: int | None = None
    slowdown: tuple[float, ...] = (1.0,)

    @property
    def devices(self) -> int:
        """Devices that are taken up; cores where they are shared."""
        if self.cores is not None:
            return self.cores
        separate = () if self.colocated else self.encoders
        return sum(stage.parallel.devices for stage in (*separate, self.objective))
