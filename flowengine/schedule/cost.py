"""What it costs to train on a pack, in any unit: only ratios matter to packing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flowengine.api import Lengths


@dataclass(frozen=True)
class Cost:
    """A pack's cost: the sum over its samples of

        linear * tokens + quadratic * tokens**2 + constant + media[name] * rows of that media

    The default counts tokens. No coefficient is negative; a modality without one costs nothing.
    """

    linear: float = 1.0
    quadratic: float = 0.0
    constant: float = 0.0
    media: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = {"linear": self.linear, "quadratic": self.quadratic, "constant": self.constant}
        for name, value in (*own.items(), *self.media.items()):
            if not 0 <= value < math.inf:
                raise ValueError(f"cost: {name} is {value}; expected a number of at least 0")
        if not any(own.values()):
            raise ValueError("cost: a sample of text costs nothing; set linear=")

    def of_samples(self, lengths: Sequence[Lengths]) -> NDArray[np.float64]:
        """The cost of each sample: float64 [n]."""
        tokens = np.array([sample.tokens for sample in lengths], np.float64)
        costs = self.constant + tokens * (self.linear + self.quadratic * tokens)
        for name, each in self.media.items():
            costs += each * np.array([sample.media.get(name, 0) for sample in lengths])
        return costs

    def of_pack(self, lengths: Sequence[Lengths]) -> float:
        """The cost of a pack of these samples."""
        return float(self.of_samples(lengths).sum())


def flowtrain_cost(tokens: Sequence[int], *, max_tokens: int) -> float:
    """FlowTrain's cost of a pack, for comparison: sum / L + (longest / L)**2, L = max_tokens.

    arXiv 2606.23087; no sum over samples, so a pack's longest sample hides the others.
    """
    return sum(tokens) / max_tokens + (max(tokens) / max_tokens) ** 2
