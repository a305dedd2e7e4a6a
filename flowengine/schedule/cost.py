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


def model_cost(
    *,
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    vocabulary: int,
    flops_per_s: float,
    kv_heads: int | None = None,
    gated: bool = True,
    causal: bool = True,
) -> Cost:
    """What training a transformer decoder takes, in seconds, from its shape alone.

    width: of the residual stream; a head has width / heads. hidden: of the feed-forward layer.
    kv_heads: of keys and values, if fewer. gated: three feed-forward matrices, not two. causal:
    attention skips the half that a causal mask hides, as fused kernels do.
    flops_per_s: what the device reaches in this model, not its peak.

    A matrix of p weights takes 2 p FLOPs per token forward and twice that backward; scores and
    weighted values take 4 width FLOPs per layer and pair of tokens (Kaplan et al. 2020, table 1;
    Chowdhery et al. 2022, appendix B).
    """
    shape = {"layers": layers, "width": width, "heads": heads, "hidden": hidden}
    shape |= {"vocabulary": vocabulary, "kv_heads": kv_heads or heads}
    for name, value in shape.items():
        if value < 1:
            raise ValueError(f"cost: {name} is {value}; expected at least 1")
    if not 0 < flops_per_s < math.inf:
        raise ValueError(f"cost: flops_per_s is {flops_per_s}; expected a number above 0")
    attention = 2 * width * width * (1 + shape["kv_heads"] / heads)
    weights = layers * (attention + (3 if gated else 2) * width * hidden) + width * vocabulary
    pairs = layers * width * (2 if causal else 4)
    return Cost(linear=6 * weights / flops_per_s, quadratic=3 * pairs / flops_per_s)
