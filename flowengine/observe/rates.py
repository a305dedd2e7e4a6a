"""How fast a run trains: tokens, media and model operations per second, and the MFU, per step.

MFU is what share of the hardware's peak the model's own operations take: operations of the step /
(its seconds * peak). They are those of flowengine.runtime.flops, added up per stage, so that the
encoders' share and the language model's stand apart and their sum is the run's. The peak is of all
devices that the run uses together; it is stated by the user, or measured with `measure_peak`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowengine.runtime.events import Effort, Event, Restarted, StepDone

SIDE = 1024
ROUNDS = 8


@dataclass(frozen=True)
class Peak:
    """flops_per_s: operations per second at most. origin: how that is known."""

    flops_per_s: float
    origin: str


@dataclass(frozen=True)
class Rates:
    """Of one step, per second; None for the first one, whose time holds the start of the workers.

    media: items by modality. flops: by stage, empty where they are not counted. mfu: by stage, with
    their sum under "total"; empty without a peak. padding: what of the packs' room stays empty; it
    is not computed, packs are as long as their samples.
    """

    tokens_per_s: float | None
    samples_per_s: float | None
    media_per_s: Mapping[str, float]
    flops_per_s: Mapping[str, float]
    mfu: Mapping[str, float]
    padding: float


class RateMeter:
    """Feed it every event with `add`; a StepDone gives the step's rates."""

    def __init__(self, peak: Peak | None = None) -> None:
        self._peak = peak
        self._efforts: dict[int, list[Effort]] = defaultdict(list)
        self._before: StepDone | None = None

    def add(self, event: Event) -> Rates | None:
        """The rates if the event ends a step, else None."""
        match event:
            case Effort():
                self._efforts[event.step].append(event)
            case Restarted():
                self._efforts.clear()
                self._before = None
            case StepDone():
                rates = self._rates(event, self._efforts.pop(event.step, []))
                self._before = event
                return rates
        return None

    def _rates(self, step: StepDone, efforts: list[Effort]) -> Rates:
        seconds = step.wall_s - self._before.wall_s if self._before is not None else 0.0
        if seconds <= 0:
            return Rates(None, None, {}, {}, {}, 1 - step.fill)
        flops = {stage: count / seconds for stage, count in add_flops(efforts).items()}
        return Rates(
            tokens_per_s=step.tokens / seconds,
            samples_per_s=step.samples / seconds,
            media_per_s={name: count / seconds for name, count in add_items(efforts).items()},
            flops_per_s=flops,
            mfu=shares(flops, self._peak),
            padding=1 - step.fill,
        )


def add_items(efforts: list[Effort]) -> dict[str, int]:
    """Items by modality."""
    total: dict[str, int] = defaultdict(int)
    for effort in efforts:
        if effort.modality:
            total[effort.modality] += effort.items
    return dict(sorted(total.items()))


def add_flops(efforts: list[Effort]) -> dict[str, int]:
    """Operations by stage; empty where they were not counted."""
    total: dict[str, int] = defaultdict(int)
    for effort in efforts:
        total[effort.stage] += effort.flops
    return dict(sorted(total.items())) if any(total.values()) else {}


def shares(flops_per_s: Mapping[str, float], peak: Peak | None) -> dict[str, float]:
    """The MFU by stage, and of all under "total"."""
    if peak is None or not flops_per_s:
        return {}
    each = {stage: rate / peak.flops_per_s for stage, rate in flops_per_s.items()}
    return {**each, "total": sum(each.values())}


def summarise(
    efforts: list[Effort], *, busy_s: Mapping[str, float], elapsed_s: float, peak: Peak | None
) -> dict[str, Any]:
    """The report's entry `mfu`, over these efforts in these seconds; busy_s by stage, over its
    replicas."""
    flops = add_flops(efforts)
    mfu = shares({s: n / elapsed_s for s, n in flops.items()}, peak) if elapsed_s > 0 else {}
    return {
        "peak_flops_per_s": peak.flops_per_s if peak else None,
        "peak_origin": peak.origin if peak else None,
        "total": mfu.get("total"),
        "stages": {
            stage: {
                "flops": count,
                "share": count / sum(flops.values()),
                "mfu": mfu.get(stage),
                "busy_s": busy_s.get(stage),
            }
            for stage, count in flops.items()
        },
    }


def measure_peak(dtype: str = "float32") -> Peak:
    """The best of several products of square matrices, on all GPUs if there are any, else on all
    cores that this process may use. A second or less."""
    import os

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    count = torch.cuda.device_count() if device == "cuda" else 1
    side = 8 * SIDE if device == "cuda" else SIDE
    threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    try:
        matrix = torch.randn(side, side, device=device).to(getattr(torch, dtype))
        seconds = min(_product_s(matrix) for _ in range(ROUNDS))
    finally:
        torch.set_num_threads(threads)
    where = f"{count} GPU(s)" if device == "cuda" else f"{cores} thread(s)"
    told = f"measured: best of {ROUNDS} products of {side} x {side} in {dtype}, {where}"
    return Peak(count * 2 * side**3 / seconds, told)


def _product_s(matrix: Any) -> float:
    import torch

    def wait() -> None:
        if matrix.is_cuda:
            torch.cuda.synchronize()

    wait()
    began = time.perf_counter()
    torch.mm(matrix, matrix)
    wait()
    return time.perf_counter() - began
