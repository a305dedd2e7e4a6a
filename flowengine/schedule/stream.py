"""Packing a stream: samples come one by one, and packs go as soon as they are full."""

from __future__ import annotations

from array import array

import numpy as np

from flowengine.schedule import kernels
from flowengine.schedule.lengths import TooLong, TooLongError, check_policy

NONE = np.empty(0, np.int64)


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
        self._ids: list[int] = []  # from the sample numbered _first on, whether they wait or not
        self._first = 0
        self._fresh = array("q")  # lengths that the kernel has not seen
        self._num_waiting = 0  # without the fresh ones
        self._tokens = 0  # of these
        self._needed = window  # fresh samples before a pack can be full
        self._waiting = np.empty((5, window), np.int64)
        self._capacity = window

    def __len__(self) -> int:
        """How many samples wait."""
        return self._num_waiting + len(self._fresh)

    def push(self, id: int, length: int) -> list[list[int]]:
        """One more sample of so many tokens, at least 1; the packs that became full.

        Ids of a pack are in the order of their arrival.
        """
        if not 0 < length <= self.max_tokens:
            return self._refuse(id, length)
        self._ids.append(id)
        self._fresh.append(length)
        if len(self._fresh) < self._needed:
            return []
        return self._take_full()

    def flush(self) -> list[list[int]]:
        """The packs of all samples that still wait; the last may be far from full."""
        packs = []
        while len(self):
            packs.append(self._take())
        self._needed = self.window
        return packs

    def _take_full(self) -> list[list[int]]:
        if self._tokens + sum(self._fresh) < self.max_tokens:
            self._needed = len(self._fresh) + 1
            return []
        packs = [self._take()]
        while self._num_waiting >= self.window and self._tokens >= self.max_tokens:
            packs.append(self._take())
        self._needed = max(self.window - self._num_waiting, 1)
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
        ids, first = self._ids, self._first
        newest = first + len(ids) - 1
        num = self._num_waiting + len(self._fresh)
        if num > self._capacity:
            more = np.empty((5, num), np.int64)
            self._waiting = np.concatenate((self._waiting, more), axis=1)
            self._capacity += num
        fresh = np.frombuffer(self._fresh, np.int64) if self._fresh else NONE
        count, self._tokens = kernels.take_next(
            self._waiting, num, fresh, newest, self.window, self.max_tokens
        )
        self._num_waiting = num - count
        self._fresh = array("q")
        numbers = self._waiting[4, :count].tolist()
        numbers.sort()
        taken = [ids[number - first] for number in numbers]
        if len(ids) > 8 * self.window:
            self._forget(newest)
        return taken

    def _forget(self, newest: int) -> None:
        """Drops the ids of samples that arrived before all that wait."""
        oldest = int(self._waiting[0, 0]) if self._num_waiting else newest + 1
        del self._ids[: oldest - self._first]
        self._first = oldest
