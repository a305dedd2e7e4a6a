"""Two ends of a socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from flowengine.channel import Kind, Link, Message

BIG: Message = (Kind.NOTICE, "big", b"x" * (16 << 20))


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    """Two connected links."""
    one, other = (Link(connection) for connection in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def notice(number: int) -> Message:
    return (Kind.NOTICE, "number", number)


def test_messages_arrive_in_order_both_ways(ends: tuple[Link, Link]) -> None:
    """What one end sends the other receives, in order, in both directions at once."""
    for number in range(100):
        ends[0].send(notice(number))
        ends[1].send(notice(-number))
    assert list(ends[1].receive()) == [notice(number) for number in range(100)]
    assert list(ends[0].receive()) == [notice(-number) for number in range(100)]
    assert list(ends[0].receive()) == []
    assert not ends[0].closed


def test_a_large_message_does_not_block(ends: tuple[Link, Link]) -> None:
    """A message beyond the socket's room waits in the link, and leaves as the peer reads."""
    one, other = ends
    one.send(BIG)
    one.send(notice(1))
    assert one.wants_to_write
    received: list[Message] = []
    while one.wants_to_write:
        received += other.receive()
        one.flush()
    received += other.receive()
    assert received == [BIG, notice(1)]


def test_both_ends_may_send_large_messages_at_once(ends: tuple[Link, Link]) -> None:
    """Two peers that fill each other's sockets do not wait for each other."""
    received: list[list[Message]] = [[], []]
    for end in ends:
        end.send(BIG)
    while not all(received):
        for index, end in enumerate(ends):
            end.flush()
            received[index] += end.receive()
    assert received == [[BIG], [BIG]]


def test_drain_waits_until_all_has_left(ends: tuple[Link, Link]) -> None:
    """After drain nothing waits in the link."""
    one, other = ends
    received: list[Message] = []

    def read() -> None:
        while not received:
            received.extend(other.receive())

    reader = threading.Thread(target=read)
    one.send(BIG)
    reader.start()
    one.drain()
    reader.join()
    assert not one.wants_to_write
    assert received == [BIG]


def test_the_last_words_of_a_peer_are_heard(ends: tuple[Link, Link]) -> None:
    """What a peer sent before it closed arrives; then the link is closed."""
    one, other = ends
    other.send(notice(7))
    other.close()
    assert list(one.receive()) == [notice(7)]
    assert list(one.receive()) == []
    assert one.closed


def test_a_peer_that_dies_with_unread_bytes_is_reported(ends: tuple[Link, Link]) -> None:
    """A reset of the connection closes the link like an end does, without an error."""
    one, other = ends
    one.send(notice(1))
    other.close()
    assert list(one.receive()) == []
    assert one.closed


def test_the_last_words_of_a_peer_with_unread_bytes_are_heard(ends: tuple[Link, Link]) -> None:
    """A reset of the connection does not swallow what the peer had sent before it."""
    one, other = ends
    one.send(notice(1))
    other.send(notice(7))
    other.close()
    assert list(one.receive()) == [notice(7)]
    assert list(one.receive()) == []
    assert one.closed


def test_a_message_cut_off_by_death_is_no_message(ends: tuple[Link, Link]) -> None:
    """Half a message of a dead peer is dropped."""
    one, other = ends
    other.send(BIG)
    other.close()
    while not one.closed:
        assert list(one.receive()) == []


def test_sending_to_the_dead_is_silent(ends: tuple[Link, Link]) -> None:
    """A send, flush or drain after the peer has gone drops the message; what the peer had sent is
    still heard, then the link is closed."""
    one, other = ends
    one.send(BIG)
    other.send(notice(7))
    other.close()
    one.flush()
    one.send(BIG)
    one.drain()
    assert not one.wants_to_write
    assert list(one.receive()) == [notice(7)]
    assert list(one.receive()) == []
    assert one.closed


def test_close_may_be_called_twice(ends: tuple[Link, Link]) -> None:
    """A closed link stays closed, and has no descriptor."""
    ends[0].close()
    ends[0].close()
    assert ends[0].closed
    assert ends[0].fileno() == -1
