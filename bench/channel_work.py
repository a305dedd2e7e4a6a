"""What bench_channel asks of a transport, and the work that its producer does."""

from __future__ import annotations

import importlib.util
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

DEPTH = 16
METHOD = "forkserver"


class Work:
    """What the producer does for each of `count` items of `size` bytes: one pass of torch, into
    `out` where there is one. With `acknowledged`, the item starts with the time at which it was
    made, and the next is made when somebody says there that this one has arrived."""

    def __init__(self, size: int, count: int, acknowledged: Connection | None = None) -> None:
        self.size, self.count = size, count
        self.num_floats = size // 4
        self._acknowledged = acknowledged
        self._x: Tensor | None = None

    def __call__(self, number: int, out: Tensor | None = None) -> Tensor:
        if self._x is None:
            torch.set_num_threads(1)
            self._x = torch.rand(self.num_floats)
        made = torch.add(self._x, number, out=out)
        if self._acknowledged is not None:
            made[:2].view(torch.int64)[0] = time.perf_counter_ns()
        return made

    def numbers(self) -> Iterator[int]:
        """One per item."""
        for number in range(self.count):
            yield number
            if self._acknowledged is not None:
                self._acknowledged.recv_bytes()


def items_of(work: Work) -> Iterator[Tensor]:
    """The items, each in memory of its own."""
    for number in work.numbers():
        yield work(number)


class Transport(ABC):
    """One way to carry items."""

    name: str
    needs: tuple[str, ...] = ()
    pairs = True

    def is_installed(self) -> bool:
        """Whether the modules it needs can be found."""
        return all(importlib.util.find_spec(module) for module in self.needs)

    def make(self, work: Work) -> tuple[Any, Any]:
        """The producer's end and the consumer's."""
        return None, None

    def produce(self, end: Any, work: Work) -> None:
        """Sends all items; returns when the memory they lie in may go."""

    @abstractmethod
    def consume(self, end: Any, work: Work) -> Iterator[Tensor]:
        """Receives all items."""

    def forget(self, ends: tuple[Any, Any]) -> None:
        """Lets go of what the process that made the ends holds."""
