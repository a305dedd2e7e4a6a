"""Messages as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowengine.channel import Kind, Message, Row
from flowengine.channel.message import FrameReader, encode
from flowengine.pool import Payload, Tier, make_address

ADDRESS = make_address(Tier.HOST, 2**20 - 1, 2**40 - 64)
IN_POOL = Payload(None, ADDRESS, 4096, "float32", (3, 12))
INLINE = Payload(b"\x00\xff" * 4, 0, 0, "bfloat16", (4,), True)
ROW = Row(7, -5, 2, 0, 31, {"image": 6}, 104, {"rows": IN_POOL, "note": {"kind": "count"}})

MESSAGES: dict[str, Message] = {
    "rows": (Kind.ROWS, 3, [list(ROW), list(ROW._replace(tree=[(1, INLINE), None, True]))]),
    "open": (Kind.OPEN, 3, [1, 1, False, 8, 40, (3, 5)]),
    "close": (Kind.CLOSE, 3, 1),
    "end": (Kind.END, 3),
    "credit": (Kind.CREDIT, 3, 8, 2**33),
    "release": (Kind.RELEASE, [[ADDRESS, 2]]),
    "gradient": (Kind.GRADIENT, [[ADDRESS, 2], [ADDRESS + 64, 1]]),
    "notice": (Kind.NOTICE, "norms", 4, "encoder", [0.1, 1e-300, float("inf")]),
}

TREES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from([IN_POOL, INLINE]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=20,
)


def read(*chunks: bytes) -> list[Message]:
    """The messages in a stream that arrives in these chunks."""
    reader = FrameReader()
    return [message for chunk in chunks for message in reader.feed(chunk)]


@pytest.mark.parametrize("message", MESSAGES.values(), ids=list(MESSAGES))
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    """Every kind of message is the same behind the wire, its numbers and types included."""
    (found,) = read(encode(message))
    assert found == message
    assert type(found[0]) is int


@pytest.mark.parametrize("message", MESSAGES.values(), ids=list(MESSAGES))
def test_a_stream_may_be_cut_anywhere(message: Message) -> None:
    """Wherever a stream of two messages is cut in two, both arrive, in order."""
    stream = encode(message) + encode((Kind.END, 9))
    for cut in range(len(stream) + 1):
        assert read(stream[:cut], stream[cut:]) == [message, (Kind.END, 9)]


def test_single_bytes_make_messages() -> None:
    """A stream that arrives byte by byte gives each message with its last byte."""
    stream = b"".join(encode(message) for message in MESSAGES.values())
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == list(MESSAGES.values())


def test_an_unfinished_message_is_no_message() -> None:
    """All but the last byte of a message give nothing."""
    assert read(encode(MESSAGES["rows"])[:-1]) == []


@given(tree=TREES)
def test_trees_keep_their_types(tree: Any) -> None:
    """Tuples stay tuples and lists stay lists, however nested; payloads stay payloads."""
    ((_, found),) = read(encode((Kind.NOTICE, tree)))
    assert found == tree
    assert repr(found) == repr(tree)


def test_a_consumer_may_stop_between_messages() -> None:
    """Messages that were not asked for yet are given out with the next bytes."""
    reader = FrameReader()
    messages = reader.feed(encode((Kind.END, 1)) + encode((Kind.END, 2)))
    assert next(messages) == (Kind.END, 1)
    del messages
    assert list(reader.feed(b"")) == [(Kind.END, 2)]


def test_what_has_no_bytes_is_refused() -> None:
    """A value of another type does not travel, and the error names its type."""
    with pytest.raises(TypeError, match="set does not travel in a message"):
        encode((Kind.NOTICE, {1, 2}))
