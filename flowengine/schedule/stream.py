"""Packing a stream: samples come one by one, and packs go as soon as they are full."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from flowengine.schedule import kernels
from flowengine.schedule.kernels.window import COUNTS, FRESH, NAMES
from flowengine.schedule.lengths import TooLong, TooLongError, check_policy
from flowengine.schedule.limited_stream import LimitedStream

NO_SIZES: Mapping[str, int] = {}


@dataclass(frozen=True)
class Outliers:
    """Long samples wait for each other, so that the packs of one slot have one each.

    above: longer samples are outliers; at least half a pack, so that no pack has two.
    together: when so many wait, they go on, into packs that follow each other.
    delay: they go on at the latest when so many packs have left after the first of them came.
    """

    above: int
    together: int
    delay: int


class StreamPacker:
    """Packs samples as they come, with a bounded look-ahead.

    max_tokens: the most tokens a pack holds; at least 1.
    window: how many samples wait to be combined; at least 1. More wait only while they do not fill
        a pack.
    limits: how much a pack holds of anything else, by name; each at least 1.
    outliers: long samples that wait for each other; None lets them go like the others.
    too_long: what becomes of a sample that exceeds a limit: TooLongError; at once a pack of its
        own; or a place in `dead_letters`.

    A sample is in a pack soon after three windows of samples have followed it: from then on it is
    the next but for those that have waited longer. What is packed depends on the order of arrival
    and on nothing else.
    """

    def __init__(
        self,
        *,
        max_tokens: int,
        window: int,
        limits: Mapping[str, int] | None = None,
        outliers: Outliers | None = None,
        too_long: TooLong = "error",
    ) -> None:
        check_policy(too_long)
        for name, value in (("max_tokens", max_tokens), ("window", window)):
            if value < 1:
                raise ValueError(f"pack: {name} is {value}; expected at least 1")
        if outliers is not None:
            _check_outliers(outliers, max_tokens)
        self.max_tokens = max_tokens
        self.window = window
        self.dead_letters: list[tuple[int, int]] = []
        """(id, length) of the samples that were too long."""
        self._limited = LimitedStream(max_tokens, window, limits) if limits else None
        self._outliers = outliers
        self._too_long = too_long
        self._held: deque[tuple[int, int, Mapping[str, int]]] = deque()
        self._held_for = 0  # packs
        self._num_waiting = 0  # without the fresh ones, of which the kernel has not been told
        self._tokens = 0  # of these
        self._num_fresh = 0
        self._needed = window  # fresh samples before a pack can be full
        self._lacking = 0  # tokens, once there are as many
        self._arrived = 0
        self._most = 0 if limits else min(max_tokens, outliers.above if outliers else max_tokens)
        self._capacity = 2 * window
        self._waiting = np.empty((kernels.ROWS, self._capacity), np.int64)
        self._open_rows()

    def __len__(self) -> int:
        """How many samples wait."""
        waiting = self._num_waiting if self._limited is None else len(self._limited)
        return waiting + self._num_fresh + len(self._held)

    def push(self, id: int, length: int, sizes: Mapping[str, int] = NO_SIZES) -> list[list[int]]:
        """One more sample of so many tokens, at least 1; the packs that became full.

        id: 64 bits. sizes: of what `limits` names; what is left out is 0. Ids of a pack are in the
        order of their arrival.
        """
        if not 0 < length <= self._most:
            return self._push_another(id, length, sizes)
        fresh = self._num_fresh
        self._names[fresh] = id
        self._lengths[fresh] = length
        self._num_fresh = fresh = fresh + 1
        if fresh < self._needed:
            return []
        return self._take_full(length)

    def push_many(self, ids: Iterable[int], lengths: Iterable[int]) -> list[list[int]]:
        """The same for one sample after the other: all packs that became full on the way."""
        packs: list[list[int]] = []
        for id, length in zip(ids, lengths, strict=True):
            packs += self.push(id, length)
        return packs

    def flush(self) -> list[list[int]]:
        """The packs of all samples that still wait; the last may be far from full."""
        packs = self._release()
        if self._limited is not None:
            return packs + self._limited.take(at_once=True)
        packs += self._take(at_once=True)
        self._needed, self._lacking = self.window, 0
        return packs

    def _take_full(self, length: int) -> list[list[int]]:
        """Called with every sample from the one on that made a window; `length` is its own."""
        if self._lacking > 0:
            self._lacking -= length
            if self._lacking > 0:
                self._wait_for_more()
                return []
        packs = self._take(at_once=False)
        self._needed = max(self.window - self._num_waiting, 1)
        if self._num_waiting >= self.window:
            self._lacking = self.max_tokens - self._tokens
            self._wait_for_more()
        return packs + self._release_if_due(len(packs)) if self._held else packs

    def _take(self, *, at_once: bool) -> list[list[int]]:
        before, fresh = self._num_waiting, self._num_fresh
        self._arrived += fresh
        self._num_fresh = 0
        num_packs, self._num_waiting, self._tokens = kernels.take_full(
            self._waiting, before, fresh, self._arrived - 1, self.window, self.max_tokens, at_once
        )
        if num_packs == 1:
            return [self._names[: before + fresh - self._num_waiting].tolist()]
        packs, start = [], 0
        for count in self._counts[:num_packs].tolist():
            packs.append(self._names[start : start + count].tolist())
            start += count
        return packs

    def _wait_for_more(self) -> None:
        """A window of samples does not fill a pack."""
        self._needed = self._num_fresh + 1
        if self._num_waiting + self._needed >= self._capacity:
            self._grow()

    def _grow(self) -> None:
        """Twice the memory; those that wait keep their places."""
        self._waiting = np.concatenate((self._waiting, np.empty_like(self._waiting)), axis=1)
        self._capacity *= 2
        self._open_rows()

    def _open_rows(self) -> None:
        self._names = memoryview(self._waiting[NAMES])
        self._lengths = memoryview(self._waiting[FRESH])
        self._counts = memoryview(self._waiting[COUNTS])

    # what is not the common case

    def _push_another(self, id: int, length: int, sizes: Mapping[str, int]) -> list[list[int]]:
        if length < 1:
            raise ValueError(f"pack: sample {id} has length {length}; expected at least 1")
        excess = self._find_excess(length, sizes)
        if excess is not None:
            return self._refuse(id, length, *excess)
        if self._outliers is not None and length > self._outliers.above:
            self._held.append((id, length, sizes))
            return self._release() if len(self._held) == self._outliers.together else []
        return self._add(id, length, sizes)

    def _find_excess(self, length: int, sizes: Mapping[str, int]) -> tuple[str, int, int] | None:
        """What of a sample exceeds a pack: its name, how much there is, and the limit."""
        if length > self.max_tokens:
            return "tokens", length, self.max_tokens
        return None if self._limited is None else self._limited.find_excess(sizes)

    def _refuse(self, id: int, length: int, unit: str, size: int, limit: int) -> list[list[int]]:
        if self._too_long == "own-pack":
            return [[id]]
        if self._too_long == "dead-letter":
            self.dead_letters.append((id, length))
            return []
        remedy = "max_tokens=" if unit == "tokens" else f'limits["{unit}"]'
        raise TooLongError(id, unit, size, limit, remedy)

    def _add(self, id: int, length: int, sizes: Mapping[str, int]) -> list[list[int]]:
        """One more sample takes part, whatever its length."""
        if self._limited is not None:
            self._limited.add(id, length, sizes)
            packs = self._limited.take(at_once=False)
            return packs + self._release_if_due(len(packs)) if self._held else packs
        self._names[self._num_fresh] = id
        self._lengths[self._num_fresh] = length
        self._num_fresh += 1
        return [] if self._num_fresh < self._needed else self._take_full(length)

    def _release_if_due(self, num_packs: int) -> list[list[int]]:
        assert self._outliers is not None
        self._held_for += num_packs
        return self._release() if self._held_for >= self._outliers.delay else []

    def _release(self) -> list[list[int]]:
        held, self._held, self._held_for = self._held, deque(), 0
        return [pack for each in held for pack in self._add(*each)]


def _check_outliers(outliers: Outliers, max_tokens: int) -> None:
    if 2 * outliers.above < max_tokens:
        raise ValueError(
            f"pack: outliers are above {outliers.above} tokens; expected at least half of "
            f"max_tokens, {-(-max_tokens // 2)}"
        )
    for name, value in (("together", outliers.together), ("delay", outliers.delay)):
        if value < 1:
            raise ValueError(f"pack: outliers' {name} is {value}; expected at least 1")
