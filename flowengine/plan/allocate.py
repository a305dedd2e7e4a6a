"""Which candidate every stage gets: exact, by enumeration with bounds.

An encoder and the objective are the ends of an edge. Rates are those of the graph's samples that a
candidate could serve, its own rate over its demand per sample, so that edges compare. The choice is
the first in this order: the highest rate of the slowest edge; the least mismatch, summed over the
edges, of what one end could give and the other take; the fewest devices. Every encoder is held
against its own edge: FlowTrain (arXiv 2606.23087) adds up what all encoders give, and there one
modality hides another's lack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowengine.errors import PlanError
from flowengine.plan import kernels
from flowengine.plan.costs import Parallel


@dataclass(frozen=True)
class Candidate:
    """One layout of one stage. rate: samples of the graph per second it could serve. memory_bytes:
    on each of its devices."""

    parallel: Parallel
    rate: float
    memory_bytes: float = 0.0

    @property
    def devices(self) -> int:
        return self.parallel.devices


@dataclass(frozen=True)
class Choice:
    """A candidate for the objective and one for each encoder, in the order given.

    rate: of the slowest edge. mismatch: summed over edges, 0 where both ends are equally fast.
    """

    objective: Candidate
    encoders: tuple[Candidate, ...]
    rate: float
    mismatch: float

    @property
    def devices(self) -> int:
        return self.objective.devices + sum(each.devices for each in self.encoders)


def allocate(
    objective: Sequence[Candidate], encoders: Sequence[Sequence[Candidate]], *, devices: int
) -> Choice:
    """The best choice that needs no more than `devices`; PlanError if there is none."""
    if not objective or not all(encoders):
        raise PlanError("plan: a stage has no candidate; expected at least one for each")
    ranked = [_ranked(each) for each in (objective, *encoders)]
    rates = np.concatenate([[c.rate for c in stage] for stage in ranked]).astype(np.float64)
    needs = np.concatenate([[c.devices for c in stage] for stage in ranked]).astype(np.int64)
    starts = np.cumsum([0, *(len(stage) for stage in ranked)]).astype(np.int64)
    picked: NDArray[np.int64] = kernels.choose(rates, needs, starts, devices)
    if picked[0] < 0:
        least = sum(min(c.devices for c in stage) for stage in ranked)
        raise PlanError(
            f"plan: the smallest candidates of all stages need {least} devices together, there are "
            f"{devices}; give more devices"
        )
    chosen = [stage[at] for stage, at in zip(ranked, picked.tolist(), strict=True)]
    return make_choice(chosen[0], chosen[1:])


def make_choice(objective: Candidate, encoders: Sequence[Candidate]) -> Choice:
    """What these candidates come to."""
    rates = [each.rate for each in encoders]
    mismatch = 0.0
    for rate in rates:
        mismatch += abs(rate - objective.rate) / max(rate, objective.rate)
    return Choice(objective, tuple(encoders), min([objective.rate, *rates]), mismatch)


def _ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda each: (-each.rate, each.devices))
