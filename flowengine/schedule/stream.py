"""Packing a stream: samples come one by one, and packs go as soon as they are full."""

from __future__ import annotations

import numpy as np

from flowengine.schedule import kernels
from flowengine.schedule.lengths import TooLong, TooLongError, check_policy


class StreamPacker:
    """Packs samples as they come, with a bounded look-ahead.

    max_tokens: the most tokens a pack holds; at least 1.
    window: how many samples wait to be combined; at least 1. More wait only while they do not fill
        a pack.
    too_long: what becomes of a longer sample: TooLongError; at once a pack of its own; or a place
        in `dead_letters`.

    A sample is in a pack soon after three windows of samples have followed it: from then on it is
    the next but for those that have waited longer. What is packed depends on the order of arrival
    and on nothing else.
    """

    def __init__(self, *, max_tokens: int, window: int, too_long: TooLong = "error") -> None:
        check_policy(too_long)
        for name, value in (("max_tokens", max_tokens), ("window", window)):
            if value < 1:
                raise ValueError(f"pack: {name} is {value}; expected at least 1")
        self.max_tokens = max_tokens
        self.window = window
        self.dead_letters: list[tuple[int, int]] = []
        """(id, length) of the samples that were too long."""
        self._too_long = too_long
        self._ids: dict[int, int] = {}
        self._arrived = 0
        self._tokens = 0
        self._fresh: list[int] = []
        self._waiting = np.empty((4, window), np.int64)
        self._taken = np.empty(window, np.int64)

    def __len__(self) -> int:
        """How many samples wait."""
        return len(self._ids)

    def push(self, id: int, length: int) -> list[list[int]]:
        """One more sample of so many tokens, at least 1; the packs that became full.

        Ids of a pack are in the order of their arrival.
        """
        if not 0 < length <= self.max_tokens:
            return self._refuse(id, length)
        self._ids[self._arrived] = id
        self._arrived += 1
        self._tokens += length
        self._fresh.append(length)
        packs = []
        while len(self._ids) >= self.window and self._tokens >= self.max_tokens:
            packs.append(self._take())
        return packs

    def flush(self) -> list[list[int]]:
        """The packs of all samples that still wait; the last may be far from full."""
        packs = []
        while self._ids:
            packs.append(self._take())
        return packs

    def _refuse(self, id: int, length: int) -> list[list[int]]:
        if length < 1:
            raise ValueError(f"pack: sample {id} has length {length}; expected at least 1")
        if self._too_long == "own-pack":
            return [[id]]
        if self._too_long == "dead-letter":
            self.dead_letters.append((id, length))
            return []
        raise TooLongError(id, "tokens", length, self.max_tokens, "max_tokens=")

    def _take(self) -> list[int]:
        if len(self._ids) > len(self._taken):
            more = np.empty((4, len(self._ids)), np.int64)
            self._waiting = np.concatenate((self._waiting, more), axis=1)
            self._taken = np.empty(self._waiting.shape[1], np.int64)
        count, tokens = kernels.take_next(
            self._waiting,
            len(self._ids) - len(self._fresh),
            np.array(self._fresh, np.int64),
            self._arrived - 1,
            self.window,
            self.max_tokens,
            self._taken,
        )
        self._fresh.clear()
        self._tokens -= tokens
        return [self._ids.pop(number) for number in sorted(self._taken[:count].tolist())]
