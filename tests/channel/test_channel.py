"""Credits between an outlet and an inlet."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowengine.channel import Inlet, Kind, Message, Outlet, Row

PRODUCER, CONSUMER = 0, 1


class Wire:
    """An outlet and an inlet with a wire between them that keeps messages until they are carried
    over."""

    def __init__(self, *, items: int, num_bytes: int) -> None:
        self.mail: deque[tuple[int, Message]] = deque()
        self.outlet = Outlet(5, CONSUMER, items=items, num_bytes=num_bytes, post=self._post)
        self.inlet = Inlet(5, PRODUCER, port="in", post=self._post)

    def _post(self, to: int, message: Message) -> None:
        self.mail.append((to, message))

    def carry(self) -> None:
        """Delivers all that is on its way."""
        while self.mail:
            to, (kind, channel, *fields) = self.mail.popleft()
            assert channel == 5
            if to == CONSUMER:
                assert kind == Kind.ROWS
                self.inlet.on_rows(fields[0])
            else:
                assert kind == Kind.CREDIT
                self.outlet.on_credit(*fields)


def row(sample: int, size: int = 100) -> Row:
    return Row(0, sample, -1, -1, 0, {}, size, None)


@pytest.mark.parametrize("credits", [1, 2, 50])
@settings(max_examples=50)
@given(sizes=st.lists(st.integers(1, 40), max_size=30), data=st.data())
def test_rows_on_their_way_never_exceed_the_bound(
    credits: int, sizes: list[int], data: st.DataObject
) -> None:
    """However sends and returns interleave, rows that were sent and not returned stay within the
    bound in items and in bytes, and arrive in order, each once."""
    wire = Wire(items=credits, num_bytes=100)
    waiting = deque(row(i, size) for i, size in enumerate(sizes))
    received: list[int] = []
    open_rows: deque[Row] = deque()
    while waiting or open_rows or wire.mail:
        if waiting and wire.outlet.has_room(1, waiting[0].size):
            wire.outlet.send([waiting.popleft()])
        else:
            wire.carry()
            open_rows += wire.inlet.rows
            received += [arrived.sample for arrived in wire.inlet.rows]
            wire.inlet.rows.clear()
            done = data.draw(st.integers(1, len(open_rows))) if open_rows else 0
            wire.inlet.give_back([open_rows.popleft() for _ in range(done)])
            assert len(open_rows) <= credits
            assert sum(each.size for each in open_rows) <= 100
    wire.carry()
    assert received == list(range(len(sizes)))
    assert (wire.outlet.items, wire.outlet.num_bytes) == (credits, 100)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(i, 1) for i in range(3)], "channel 5: more items sent than credits"),
        ([row(0, 101)], "channel 5: more bytes sent than credits"),
    ],
    ids=["items", "bytes"],
)
def test_sending_without_credits_is_caught(rows: list[Row], message: str) -> None:
    """A row beyond the credits is a mistake of the engine; it does not reach the wire."""
    wire = Wire(items=2, num_bytes=100)
    with pytest.raises(AssertionError, match=message):
        wire.outlet.send(rows)
    assert not wire.mail


@pytest.mark.parametrize(("items", "num_bytes"), [(1, 0), (0, 1)], ids=["items", "bytes"])
def test_credits_out_of_nothing_are_caught(items: int, num_bytes: int) -> None:
    """More credits than were spent are a mistake of the engine, in items as in bytes."""
    wire = Wire(items=2, num_bytes=100)
    with pytest.raises(AssertionError, match="channel 5: credits out of nothing"):
        wire.outlet.on_credit(items, num_bytes)


def test_arrived_rows_still_hold_their_credits() -> None:
    """Credits come back when the consumer is done with a row, not when the row arrives."""
    wire = Wire(items=2, num_bytes=1000)
    wire.outlet.send([row(0), row(1)])
    wire.carry()
    assert not wire.outlet.has_room(1, 0)
    wire.inlet.give_back([wire.inlet.rows.popleft()])
    wire.carry()
    assert wire.outlet.has_room(1, 900)
    assert not wire.outlet.has_room(1, 901)
    assert not wire.outlet.has_room(2, 0)


def test_what_never_fits_is_known_beforehand() -> None:
    """`could_hold` is about the bound, whatever credits are out."""
    outlet = Wire(items=2, num_bytes=100).outlet
    outlet.send([row(0)])
    assert outlet.could_hold(2, 100)
    assert not outlet.could_hold(3, 1)
    assert not outlet.could_hold(1, 101)


def test_nothing_done_gives_nothing_back() -> None:
    """Returning no rows sends no message."""
    wire = Wire(items=2, num_bytes=100)
    wire.inlet.give_back([])
    assert not wire.mail


def test_rounds_travel_in_band() -> None:
    """The opening and closing of rounds, and the end, keep their order among the rows."""
    wire = Wire(items=4, num_bytes=1000)
    wire.outlet.open([0])
    wire.outlet.send([row(0)])
    wire.outlet.close(0)
    wire.outlet.end(early=False)
    kinds = [message[0] for _, message in wire.mail]
    assert kinds == [Kind.OPEN, Kind.ROWS, Kind.CLOSE, Kind.END]


def test_a_row_is_stuck_behind_its_own_pack() -> None:
    """Where the reader takes whole packs, a channel full of one pack's rows never has room for
    another row of it; it will have for other packs' rows."""
    wire: list[Message] = []
    outlet = Outlet(
        0, 1, items=2, num_bytes=999, post=lambda _, m: wire.append(m), keeps_packs=True
    )
    outlet.send([row(0)._replace(pack=3)])
    outlet.send([row(0)._replace(pack=4)])
    assert not outlet.is_stuck(0, 4)
    outlet.on_credit(1, row(0).size)
    assert outlet.is_stuck(0, 4)
    assert not outlet.is_stuck(0, 3)
    assert not outlet.is_stuck(1, 4)
    outlet.on_credit(1, row(0).size)
    assert not outlet.is_stuck(0, 4)
