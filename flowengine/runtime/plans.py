"""What plans depend on besides lengths: a checkpoint holds it, so that a resumed run plans alike.

Rules.
- The source says with every step which measured cost it planned with, if any, and which samples it
  left to the next step. It runs ahead: there may be plans of steps that are not trained yet.
- A checkpoint behind step s holds what is known of the plans from s on, and what s - 1 left over.
  A resumed run plans those steps with the same cost, later ones with the newest it learns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COEFFICIENTS = ("linear", "quadratic", "constant")


class Plans:
    """Of one run. given: those of the checkpoint it began behind."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._costs: dict[int, list[float]] = {int(k): v for k, v in given.get("costs", {}).items()}
        self._deferred: dict[int, list[int]] = {}
        self._given_deferred: list[int] = list(given.get("deferred", ()))

    def add(self, step: int, cost: list[float] | None, deferred: list[int]) -> None:
        """How a step was planned."""
        if cost is not None:
            self._costs[step] = list(cost)
        self._deferred[step] = list(deferred)

    def behind(self, step: int) -> dict[str, Any]:
        """What a checkpoint behind so many steps holds; nothing earlier will be asked for."""
        known = sorted(self._costs)
        older = [s for s in known if s < step]
        kept = older[-1:] + [s for s in known if s >= step]
        self._costs = {s: self._costs[s] for s in kept}
        self._deferred = {s: ids for s, ids in self._deferred.items() if s >= step - 1}
        deferred = self._deferred.get(step - 1, self._given_deferred)
        if not kept and not deferred:
            return {}
        return {"costs": {str(s): self._costs[s] for s in kept}, "deferred": deferred}

    def cost_of(self, step: int, newest: list[float] | None) -> list[float] | None:
        """The cost to plan a step with: as it was planned before, else the newest there is."""
        if step in self._costs:
            return self._costs[step]
        if newest is not None:
            return newest
        return self._costs[max(self._costs)] if self._costs else None

    @property
    def deferred(self) -> tuple[int, ...]:
        """The samples that the step before the start left over."""
        return tuple(self._given_deferred)
