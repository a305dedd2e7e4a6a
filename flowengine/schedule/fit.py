"""What packs cost, from how long they took."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flowengine.schedule.cost import Cost

LEAST_PACKS = 8
"""Fewer measurements than this do not determine three coefficients well enough to pack by."""


@dataclass(frozen=True)
class Fit:
    """A cost in seconds, and how well it explains the measurements.

    residual: the root of the mean squared error, as a part of the mean time. packs: how many.
    """

    cost: Cost
    residual: float
    packs: int


@dataclass(frozen=True)
class Drift:
    """The cost no longer tells how long packs take.

    error: the median of (measured / expected - 1) over the latest packs. before: what was expected.
    """

    error: float
    before: Fit


def fit_cost(packs: Sequence[ArrayLike], seconds: ArrayLike) -> Fit:
    """quadratic * sum(len**2) + linear * sum(len) + constant * n, by least squares.

    packs: the lengths of each pack's samples in tokens; at least 8 packs. seconds: how long each
    took, above 0. No coefficient is negative: of all sets of coefficients that may be above 0, the
    one with the least error whose solution is (Lawson and Hanson 1974, chapter 23, for three).
    """
    times = np.asarray(seconds, np.float64)
    if times.shape != (len(packs),) or not (np.isfinite(times) & (times > 0)).all():
        raise ValueError(
            f"cost: seconds are {times.dtype} of shape {times.shape} for {len(packs)} packs; "
            "expected one number above 0 per pack"
        )
    if len(packs) < LEAST_PACKS:
        raise ValueError(f"cost: {len(packs)} packs were measured; expected at least {LEAST_PACKS}")
    sums = np.array([_sums(lengths) for lengths in packs])
    return _fit(sums, times)


class RunningFit:
    """Fits a cost to the latest packs of a run, and tells when it no longer holds.

    window: how many packs it keeps, and at which distance it fits again. recent: how many packs
    have to be off for an alarm, and how many it waits for before the first fit. tolerance: how far
    off their median may be, as a part of what was expected.
    """

    def __init__(self, *, window: int = 256, recent: int = 32, tolerance: float = 0.1) -> None:
        if not LEAST_PACKS <= recent <= window:
            raise ValueError(
                f"cost: recent is {recent} and window is {window}; expected at least "
                f"{LEAST_PACKS}, and no more recent packs than the window holds"
            )
        if not tolerance > 0:
            raise ValueError(f"cost: tolerance is {tolerance}; expected a number above 0")
        self.window = window
        self.recent = recent
        self.tolerance = tolerance
        self.fit: Fit | None = None
        """The fit that holds; None during the warm-up."""
        self._sums: deque[NDArray[np.float64]] = deque(maxlen=window)
        self._seconds: deque[float] = deque(maxlen=window)
        self._errors: deque[float] = deque(maxlen=recent)
        self._age = 0
        self._warming = True

    def observe(self, lengths: ArrayLike, seconds: float) -> Drift | None:
        """One more pack of samples of these lengths took so long; the alarm, if it gives one.

        After an alarm it forgets what it has measured; the old fit stands until as many packs as in
        the first warm-up give a new one.
        """
        if not 0 < seconds < np.inf:
            raise ValueError(f"cost: a pack took {seconds} s; expected a number above 0")
        self._sums.append(_sums(lengths))
        self._seconds.append(seconds)
        self._age += 1
        if self.fit is None or self._warming:
            if len(self._sums) == self.recent:
                self._refit()
            return None
        expected = float(_coefficients(self.fit.cost) @ self._sums[-1])
        self._errors.append(seconds / expected - 1 if expected > 0 else np.inf)
        error = float(np.median(self._errors))
        if len(self._errors) == self.recent and abs(error) > self.tolerance:
            self._sums.clear()
            self._seconds.clear()
            self._warming = True
            return Drift(error=error, before=self.fit)
        if self._age >= self.window:
            self._refit()
        return None

    def _refit(self) -> None:
        self.fit = _fit(np.array(self._sums), np.array(self._seconds))
        self._errors.clear()
        self._age = 0
        self._warming = False


def _sums(lengths: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(lengths, np.float64)
    if array.ndim != 1 or array.size == 0 or not (array >= 0).all():
        raise ValueError(
            f"cost: a pack's lengths have shape {array.shape}; expected at least one, none negative"
        )
    return np.array([array @ array, array.sum(), float(array.size)])


def _coefficients(cost: Cost) -> NDArray[np.float64]:
    return np.array([cost.quadratic, cost.linear, cost.constant])


def _fit(sums: NDArray[np.float64], seconds: NDArray[np.float64]) -> Fit:
    scale = np.maximum(sums.max(axis=0), 1.0)
    columns = sums / scale
    best, least = np.zeros(3), float(seconds @ seconds)
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            part, *_ = np.linalg.lstsq(columns[:, chosen], seconds)
            error = columns[:, chosen] @ part - seconds
            if (part >= 0).all() and float(error @ error) < least:
                best, least = np.zeros(3), float(error @ error)
                best[list(chosen)] = part
    quadratic, linear, constant = (best / scale).tolist()
    residual = float(np.sqrt(least / len(seconds)) / seconds.mean())
    cost = Cost(linear=linear, quadratic=quadratic, constant=constant)
    return Fit(cost=cost, residual=residual, packs=len(seconds))
