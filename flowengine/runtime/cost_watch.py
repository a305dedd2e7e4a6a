"""What packs cost, from how long the objective took for them, while the run goes on.

It observes: plans follow a measured cost only where the packer asks for it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowengine.runtime.events import CostDrifted, CostFitted
from flowengine.schedule import RunningFit

TOLERANCE = 0.2
"""How far off the median of the latest packs may be: twice what two runs of one program differ by
on a machine that others use as well."""


class CostWatch:
    """Of one run. observe: told of every fit and of every drift."""

    def __init__(
        self, observe: Callable[[CostFitted | CostDrifted], None], clock: Callable[[], float]
    ) -> None:
        self._observe = observe
        self._clock = clock
        self._running = RunningFit(tolerance=TOLERANCE)

    def add(self, step: int, packs: Sequence[tuple[Sequence[int], float]]) -> bool:
        """The packs of a step, each with its samples' lengths and its seconds; whether there is a
        new fit."""
        before = self._running.fit
        for lengths, seconds in packs:
            drift = self._running.observe(lengths, seconds)
            if drift is not None:
                self._observe(CostDrifted(step, self._clock(), drift.error))
        fit = self._running.fit
        if fit is before or fit is None:
            return False
        cost = fit.cost
        self._observe(
            CostFitted(
                step=step,
                wall_s=self._clock(),
                linear=cost.linear,
                quadratic=cost.quadratic,
                constant=cost.constant,
                residual=fit.residual,
                packs=fit.packs,
            )
        )
        return True

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """Linear, quadratic and constant, of the newest fit."""
        assert self._running.fit is not None
        cost = self._running.fit.cost
        return cost.linear, cost.quadratic, cost.constant
