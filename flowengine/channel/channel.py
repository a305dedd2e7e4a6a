"""A bounded channel: an outlet at the producer, an inlet at the consumer, credits between them.

Rules.
- The outlet starts with the channel's bound in credits, in items and in bytes. It spends them
  with every row it sends, and sends no row it has no credits for.
- The inlet gives credits back when its stage is done with a row, never when the row merely arrived:
  rows that wait in a stage are in the channel's bound.
- A reader that takes whole packs gives no credit back before it has all of a pack. So a row is
  stuck when the channel is full of rows of its own pack.
- Rows, and the opening and closing of rounds, arrive in the order in which they were sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from flowengine.channel.message import Kind, Message, Row

Post = Callable[[int, Message], None]
"""`post(worker, message)`: delivers in order, never blocks."""


class Outlet:
    """The producer's end of the channel `channel` to the worker `consumer`. keeps_packs: whether it
    takes whole packs."""

    def __init__(
        self,
        channel: int,
        consumer: int,
        *,
        items: int,
        num_bytes: int,
        post: Post,
        keeps_packs: bool = False,
    ) -> None:
        self.channel = channel
        self.consumer = consumer
        self.bound_items, self.bound_bytes = items, num_bytes
        self.items, self.num_bytes = items, num_bytes
        self._post = post
        self._keeps_packs = keeps_packs
        self._out: deque[tuple[int, int]] = deque()

    def has_room(self, items: int, num_bytes: int) -> bool:
        """Whether the credits for so much are there."""
        return items <= self.items and num_bytes <= self.num_bytes

    def could_hold(self, items: int, num_bytes: int) -> bool:
        """Whether so much at once is within the channel's bound at all."""
        return items <= self.bound_items and num_bytes <= self.bound_bytes

    def is_stuck(self, number: int, pack: int) -> bool:
        """Whether no credit will come back before another row of this round's pack is sent."""
        return pack >= 0 and bool(self._out) and all(out == (number, pack) for out in self._out)

    def send(self, rows: Sequence[Row]) -> None:
        """Spends the credits of these rows and sends them."""
        self.items -= len(rows)
        self.num_bytes -= sum(row.size for row in rows)
        assert self.items >= 0, f"channel {self.channel}: more items sent than credits"
        assert self.num_bytes >= 0, f"channel {self.channel}: more bytes sent than credits"
        if self._keeps_packs:
            self._out.extend((row.number, row.pack) for row in rows)
        self._post(self.consumer, (Kind.ROWS, self.channel, [list(row) for row in rows]))

    def open(self, fields: list[Any]) -> None:
        """Begins a round."""
        self._post(self.consumer, (Kind.OPEN, self.channel, fields))

    def close(self, number: int) -> None:
        """Ends a round."""
        self._post(self.consumer, (Kind.CLOSE, self.channel, number))

    def end(self, *, early: bool) -> None:
        """Says that no round follows; early: though there would have been more."""
        self._post(self.consumer, (Kind.END, self.channel, early))

    def on_credit(self, items: int, num_bytes: int) -> None:
        """Takes credits back."""
        self.items += items
        self.num_bytes += num_bytes
        within = self.items <= self.bound_items and self.num_bytes <= self.bound_bytes
        assert within, f"channel {self.channel}: credits out of nothing"
        for _ in range(min(items, len(self._out))):
            self._out.popleft()


class Inlet:
    """The consumer's end: rows that arrived on `channel` from the worker `producer`."""

    def __init__(self, channel: int, producer: int, *, port: str, post: Post) -> None:
        self.channel = channel
        self.producer = producer
        self.port = port
        self.closed = -1
        self.ended = False
        self.rows: deque[Row] = deque()
        self._post = post

    def on_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Takes in rows as they arrive."""
        self.rows.extend(Row(*row) for row in rows)

    def give_back(self, rows: Sequence[Row]) -> None:
        """Returns the credits of rows that the stage is done with."""
        if rows:
            size = sum(row.size for row in rows)
            self._post(self.producer, (Kind.CREDIT, self.channel, len(rows), size))
