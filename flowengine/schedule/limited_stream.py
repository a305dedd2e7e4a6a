"""The samples of a stream that wait, where packs have limits beside tokens."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flowengine.schedule import kernels
from flowengine.schedule.kernels.window_limits import NUMBER, SIZES


class LimitedStream:
    """Of a StreamPacker. limits: by name, each at least 1."""

    def __init__(self, max_tokens: int, window: int, limits: Mapping[str, int]) -> None:
        for name, value in limits.items():
            if value < 1:
                raise ValueError(f'pack: limits["{name}"] is {value}; expected at least 1')
        self._window = window
        self._names = tuple(limits)
        self._limits = np.array([max_tokens, *limits.values()], np.int64)
        self._waiting = np.empty((2 + len(self._limits), window), np.int64)
        self._counts = np.empty(window, np.int64)
        self._ids: dict[int, int] = {}  # by number
        self._arrived = 0

    def __len__(self) -> int:
        """How many samples wait."""
        return len(self._ids)

    def find_excess(self, sizes: Mapping[str, int]) -> tuple[str, int, int] | None:
        """What of a sample exceeds a pack: its name, how much there is, and the limit."""
        for name, limit in zip(self._names, self._limits[1:].tolist(), strict=True):
            if not 0 <= sizes.get(name, 0) <= limit:
                if sizes[name] < 0:
                    raise ValueError(f"pack: a sample has {sizes[name]} {name}; expected 0 or more")
                return name, sizes[name], limit
        return None

    def add(self, id: int, length: int, sizes: Mapping[str, int]) -> None:
        """One more sample waits."""
        num = len(self._ids)
        if num == len(self._counts):
            self._waiting = np.concatenate((self._waiting, np.empty_like(self._waiting)), axis=1)
            self._counts = np.empty(2 * num, np.int64)
        self._waiting[NUMBER, num] = self._arrived
        self._waiting[SIZES, num] = length
        for row, name in enumerate(self._names, SIZES + 1):
            self._waiting[row, num] = sizes.get(name, 0)
        self._ids[self._arrived] = id
        self._arrived += 1

    def take(self, *, at_once: bool) -> list[list[int]]:
        """The packs that are full; or all, at once."""
        num = len(self._ids)
        if num < self._window and not at_once:
            return []
        found, _ = kernels.take_limited(
            self._waiting, self._counts, num, self._arrived - 1, self._window, self._limits, at_once
        )
        packs, start = [], 0
        for count in self._counts[:found].tolist():
            numbers = self._waiting[-1, start : start + count].tolist()
            packs.append([self._ids.pop(number) for number in numbers])
            start += count
        return packs
