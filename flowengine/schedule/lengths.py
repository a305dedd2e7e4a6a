"""What the packers take in: lengths of samples, and what becomes of one that no pack can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowengine.errors import FlowError

Integers = NDArray[np.int64]
Small = NDArray[np.int32]

TooLong = Literal["error", "own-pack", "dead-letter"]
"""What becomes of a sample longer than a pack: TooLongError; a pack of its own, which exceeds the
limit; or no pack at all. It is never split or cut."""

MOST_TOKENS = 2**30
"""The largest pack the kernels handle: their memory grows with it."""


class TooLongError(FlowError, ValueError):
    """A sample does not fit an empty pack.

    position: its index in the lengths given. unit: what there is too much of, e.g. "tokens".
    size: how many the sample has. limit: how many a pack holds. remedy: the argument to raise.
    """

    def __init__(self, position: int, unit: str, size: float, limit: float, remedy: str) -> None:
        super().__init__(position, unit, size, limit, remedy)
        self.position = position
        self.unit = unit
        self.size = size
        self.limit = limit
        self.remedy = remedy

    def __str__(self) -> str:
        return self.message(sample=self.position)

    def message(self, *, sample: int) -> str:
        """What to tell the user, with the sample called by this number."""
        return (
            f"pack: sample {sample} has {self.size} {self.unit}, a pack holds {self.limit}; "
            f'raise {self.remedy} or set too_long="own-pack"'
        )


def integers(lengths: ArrayLike) -> NDArray[np.integer]:
    """Integers [n] of at least 0, in their own dtype where that is signed; ValueError else."""
    array = np.asarray(lengths)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"pack: lengths are {array.dtype} of shape {array.shape}; expected integers [n], "
            "without nulls"
        )
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    position = int(array.argmin())
    if array[position] < 0:
        raise ValueError(
            f"pack: sample {position} has length {array[position]}; expected 0 or more"
        )
    return array


def check_limit(max_tokens: int) -> None:
    """ValueError for a pack that holds less than nothing."""
    if max_tokens < 0:
        raise ValueError(f"pack: max_tokens is {max_tokens}; expected 0 or more")


def check_policy(too_long: str, *, known: Sequence[str] = get_args(TooLong)) -> None:
    """ValueError for a word that names no policy."""
    if too_long not in known:
        choices = ", ".join(f'"{word}"' for word in known)
        raise ValueError(f'pack: too_long is "{too_long}"; expected one of {choices}')


def fitting(
    lengths: NDArray[np.integer], *, max_tokens: int, too_long: TooLong
) -> tuple[Small, Integers | None]:
    """The lengths that packs are made of, int32 [n], and the samples they are of (None: all).

    An own-pack sample is given the length of a full pack, a dead letter is left out.
    """
    check_policy(too_long)
    check_limit(max_tokens)
    position = int(lengths.argmax()) if len(lengths) else 0
    kept = None
    if len(lengths) and lengths[position] > max_tokens:
        if too_long == "error":
            position = int(np.argmax(lengths > max_tokens))
            size = int(lengths[position])
            raise TooLongError(position, "tokens", size, max_tokens, "max_tokens=")
        if too_long == "dead-letter":
            kept = np.flatnonzero(lengths <= max_tokens)
            lengths = lengths[kept]
        lengths = np.minimum(lengths, max_tokens)
    if len(lengths) and int(lengths.max()) > MOST_TOKENS:
        raise ValueError(
            f"pack: a sample has {int(lengths.max())} tokens; expected at most {MOST_TOKENS}"
        )
    return np.ascontiguousarray(lengths, np.int32), kept
