"""Every decision of a simulated run, drawn from one seed or taken from a list.

A run is a function of the numbers it drew: the same numbers give the same run. Where a list ends,
the rest of the decisions are 0, which always stands for the plainest thing that could be done; so
a shorter list, or one with smaller numbers, is a simpler run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


class Choices:
    """taken: the decisions so far."""

    def __init__(self, seed: int = 0, *, given: Sequence[int] | None = None) -> None:
        self._draw = random.Random(seed).random
        self._given = given
        self.taken: list[int] = []

    def below(self, count: int) -> int:
        """One of 0 to count - 1."""
        if self._given is None:
            value = int(self._draw() * count)
        else:
            place = len(self.taken)
            value = self._given[place] % count if place < len(self._given) else 0
        self.taken.append(value)
        return value
