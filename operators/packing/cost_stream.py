"""Packs of samples as they become ready."""

from __future__ import annotations

from collections.abc import Callable

from flowengine.api import Lengths
from flowengine.schedule import StreamPacker


class CostStream:
    """Full packs within a cost. weigh: what a sample takes of each of the packer's limits."""

    def __init__(self, packer: StreamPacker, weigh: Callable[[Lengths], dict[str, int]]) -> None:
        self._packer = packer
        self._weigh = weigh

    def push(self, sample: int, lengths: Lengths) -> list[list[int]]:
        return self._packer.push(sample, lengths.tokens, self._weigh(lengths))

    def flush(self) -> list[list[int]]:
        return self._packer.flush()
