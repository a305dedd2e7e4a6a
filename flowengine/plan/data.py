"""What a graph's samples are like: how long, and how many make the stages' loads stable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowengine.api import Lengths
from flowengine.plan.load import TOKENS, Line, load_of

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
STABLE = 0.05
"""The spread of the ratio, as a part of its mean, below which it is called stable."""


def describe_data(
    lengths: Sequence[Lengths], *, encoders: Mapping[str, tuple[str, Line]], objective: Line
) -> dict[str, Any]:
    """samples; lengths: per modality, "tokens" for the model's, mean and QUANTILES;
    stable_samples: per encoder, the least power of 2 of samples over which its cost to the
    objective's varies by less than STABLE; None where there are too few samples to tell.

    encoders: by name, modality and seconds of a sample; objective: seconds of a sample.
    """
    modalities = sorted({name for sample in lengths for name in sample.media})
    columns = {"tokens": [s.tokens for s in lengths]}
    columns |= {name: [s.media.get(name, 0) for s in lengths] for name in modalities}
    theirs = _seconds(lengths, TOKENS, objective)
    return {
        "samples": len(lengths),
        "lengths": {
            name: {
                "mean": float(np.mean(values)),
                **{f"{q:g}": float(np.quantile(values, q)) for q in QUANTILES},
            }
            for name, values in columns.items()
        },
        "stable_samples": {
            name: _stable_samples(_seconds(lengths, modality, line), theirs)
            for name, (modality, line) in encoders.items()
        },
    }


def _seconds(lengths: Sequence[Lengths], modality: str, line: Line) -> NDArray[np.float64]:
    return np.array([line.seconds(load_of([sample], modality)) for sample in lengths])


def _stable_samples(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> int | None:
    size = 1
    while len(ours) // size >= 8:
        whole = len(ours) // size * size
        ratio = ours[:whole].reshape(-1, size).sum(1) / theirs[:whole].reshape(-1, size).sum(1)
        if ratio.std() < STABLE * ratio.mean():
            return size
        size *= 2
    return None
