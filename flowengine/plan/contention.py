"""By how much processes that compute side by side slow each other down, beyond sharing cores."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from typing import Any

WARM_S = 0.5
RUN_S = 1.0
WIDTH, TOKENS = 128, 1024


def measure_slowdown(*, cores: int, most: int) -> tuple[float, ...]:
    """How much longer work takes with 1, 2, ... `most` processes at it, sharing apart.

    The work is a transformer layer's forward and backward on one thread.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(most)
    results: Any = context.SimpleQueue()
    workers = [
        context.Process(target=_work, args=(index, most, barrier, results), daemon=True)
        for index in range(most)
    ]
    for worker in workers:
        worker.start()
    told = [results.get() for _ in range(most * (most + 1) // 2)]
    for worker in workers:
        worker.join()
    rates = [
        sum(rate for phase, rate in told if phase == running) / running
        for running in range(1, most + 1)
    ]
    shares = [min(1.0, cores / running) for running in range(1, most + 1)]
    found = [rates[0] * share / rate for rate, share in zip(rates, shares, strict=True)]
    return tuple(max(1.0, each) for each in found)


def _work(index: int, most: int, barrier: Barrier, results: Any) -> None:
    """In phase n, the first n processes count how often a second they do the work."""
    import torch

    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    x = torch.randn(8, TOKENS // 8, WIDTH)

    def turn() -> None:
        layer(x).sum().backward()

    _count(turn, WARM_S)
    for running in range(1, most + 1):
        barrier.wait(60)
        if index < running:
            results.put((running, _count(turn, RUN_S)))


def _count(turn: Any, seconds: float) -> float:
    began, done = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        turn()
        done += 1
    return done / took
