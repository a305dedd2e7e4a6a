"""What a stage replica did and when: spans of work and of waiting, gathered in columns.

Rules.
- Spans of one worker do not overlap, and are in the order of time.
- What is of one kind with less than JOIN_S in between is one span, and waits shorter than that are
  left out: many small pieces of work cost no more than few large ones.
- Of the first ALL_STEPS steps every span is kept, up to ten times as many steps those of every
  tenth step, up to a hundred times those of every hundredth, and so on. All stages keep the same
  steps, so a pack that is kept is kept from end to end, and a long run stays small on disk.
- Whoever gathers must take the columns away when `is_due`: no more than ROWS spans are held.
"""

from __future__ import annotations

from typing import Any, NamedTuple

JOIN_S = 0.001
ALL_STEPS = 1000
ROWS = 256
FLUSH_S = 0.5

COLUMNS = ("state", "what", "step", "held_out", "pack", "began_s", "ended_s")


class Work(NamedTuple):
    """A piece of work: what is done, for which step and pack (-1: for none in particular)."""

    what: str
    step: int
    held_out: bool = False
    pack: int = -1


class SpanLog:
    """The spans of one stage replica that have not been taken away yet."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._last: tuple[str, Work] | None = None
        self._began_s = self._ended_s = 0.0
        self._taken_s = 0.0

    def add(self, state: str, work: Work, began_s: float, ended_s: float) -> None:
        """Notes that the stage was in this state from `began_s` to `ended_s`. For states other
        than "busy", work.what is what was waited for."""
        if self._last == (state, work) and began_s - self._ended_s < JOIN_S:
            self._ended_s = ended_s
            return
        if state != "busy" and ended_s - began_s < JOIN_S:
            return
        self._settle()
        self._last, self._began_s, self._ended_s = (state, work), began_s, ended_s

    def is_due(self, now_s: float) -> bool:
        """Whether the columns should be taken away now."""
        return len(self._rows) >= ROWS or (
            now_s - self._taken_s > FLUSH_S and bool(self._rows or self._last)
        )

    def take(self, now_s: float) -> dict[str, list[Any]]:
        """All spans so far, by COLUMNS; they are no longer held."""
        self._settle()
        rows, self._rows, self._taken_s = self._rows, [], now_s
        return {name: [row[at] for row in rows] for at, name in enumerate(COLUMNS)}

    def _settle(self) -> None:
        """The last span is over."""
        if self._last is not None and is_kept(self._last[1].step):
            state, work = self._last
            times = (round(self._began_s, 6), round(self._ended_s, 6))
            self._rows.append((state, work.what, work.step, work.held_out, work.pack, *times))
        self._last = None


def is_kept(step: int) -> bool:
    """Whether the spans of this step are kept."""
    stride, steps = 1, ALL_STEPS
    while step >= steps:
        stride, steps = stride * 10, steps * 10
    return step % stride == 0
