"""A run's numbers by name, as curves in other programs are named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowengine.observe.rates import Rates
from flowengine.runtime.events import StepDone


def step_scalars(step: StepDone) -> Iterator[tuple[str, float]]:
    """What a step was."""
    yield "train/loss", step.loss
    yield "packs/fill", step.fill
    yield "packs/number", step.packs
    if step.gradient_norm is not None:
        yield "train/gradient_norm", step.gradient_norm
    yield from ((f"learning_rate/{stage}", rate) for stage, rate in step.lr.items())
    yield from ((f"staleness/{stage}", lag) for stage, lag in step.staleness.items())


def rate_scalars(rates: Rates | None) -> Iterator[tuple[str, float]]:
    """How fast it was."""
    if rates is None:
        return
    yield "packs/padding", rates.padding
    if rates.tokens_per_s is not None:
        yield "rate/tokens_per_s", rates.tokens_per_s
    if rates.samples_per_s is not None:
        yield "rate/samples_per_s", rates.samples_per_s
    yield from ((f"rate/{name}_per_s", rate) for name, rate in rates.media_per_s.items())
    yield from ((f"flops_per_s/{stage}", rate) for stage, rate in rates.flops_per_s.items())
    yield from ((f"mfu/{stage}", share) for stage, share in rates.mfu.items())


def numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """The numbers in a reported value, by path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from numbers(item, f"{path}/{key}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
