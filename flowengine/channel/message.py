"""What workers say to each other, and the bytes it travels as.

A message is a tuple that starts with its kind:

    ROWS      channel, [row, ...]        values, in order; needs credits
    OPEN      channel, round             a round begins on this channel
    CLOSE     channel, number            no more rows of this round: the barrier
    END       channel, early             no more rounds, early: since the run was told to finish
    CREDIT    channel, items, bytes      the consumer is done with that much
    RELEASE   [(span, count), ...]       leases returned to the owner of the spans
    GRADIENT  [(span, count), ...]       leases returned; the spans now hold gradients
    NOTICE    kind, step, ...            between trained stages and the coordinator
    GANG      action, filled             between the ranks of a gang, see flowengine.runtime.muster
    ITEM, BACK                           of direct channels, see flowengine.channel.direct

OPEN, ROWS, CLOSE and END keep their order per channel. CREDIT, RELEASE, GRADIENT and NOTICE need no
credit: each answers something that was bounded when it was sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from flowengine.pool import Payload

Message = tuple[Any, ...]

ROW_BYTES = 96
"""What a row counts for besides its inline payloads, in bytes of credit."""

_LENGTH = struct.Struct("<I")
_TUPLE, _PAYLOAD = 1, 2


class Kind(IntEnum):
    """The kinds of message, see the module's docstring."""

    ROWS = 1
    OPEN = 2
    CLOSE = 3
    END = 4
    CREDIT = 5
    RELEASE = 6
    GRADIENT = 7
    NOTICE = 8
    ITEM = 9
    BACK = 10
    GANG = 11


class Row(NamedTuple):
    """One value on a channel.

    number: its round. sample: the sample's id, or the pack's index for whole packs. pack, place:
    its pack in the round's plan and its position there, -1 without a plan. tokens, media: the
    sample's lengths. size: bytes of credit. tree: the value, its tensors replaced by payloads.
    """

    number: int
    sample: int
    pack: int
    place: int
    tokens: int
    media: dict[str, int]
    size: int
    tree: Any


def encode(message: Message) -> bytes:
    """The message with its length in front."""
    kind, *fields = message
    body: bytes = msgpack.packb([int(kind), *fields], default=_pack_extra, strict_types=True)
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes | bytearray | memoryview) -> Message:
    """The message of such a body; lists stand where tuples were, except inside values."""
    return tuple(msgpack.unpackb(body, ext_hook=_unpack_extra, strict_map_key=False))


class FrameReader:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._wanted = _LENGTH.size

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Message]:
        """The messages that these bytes complete; all of them must be taken before the bytes
        change."""
        if self._pending:
            self._pending += data
            if len(self._pending) < self._wanted:
                return
            data, self._pending = self._pending, bytearray()
        start, end = 0, len(data)
        try:
            while end - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(data, start)
                stop = start + _LENGTH.size + length
                if stop > end:
                    self._wanted = stop - start
                    break
                body = data[start + _LENGTH.size : stop]
                start = stop
                yield decode(body)
        finally:
            if end - start < _LENGTH.size:
                self._wanted = _LENGTH.size
            self._pending += data[start:]


def _pack_extra(value: Any) -> Any:
    if isinstance(value, Payload):
        fields = [value.data, value.span, value.offset, value.dtype, list(value.shape), value.array]
        return msgpack.ExtType(_PAYLOAD, msgpack.packb(fields))
    if isinstance(value, tuple):
        return msgpack.ExtType(
            _TUPLE, msgpack.packb(list(value), default=_pack_extra, strict_types=True)
        )
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"{type(value).__name__} does not travel in a message")


def _unpack_extra(code: int, data: bytes) -> Any:
    if code == _PAYLOAD:
        raw, span, offset, dtype, shape, array = msgpack.unpackb(data)
        return Payload(raw, span, offset, dtype, tuple(shape), array)
    assert code == _TUPLE, f"message holds an unknown extension {code}"
    return tuple(msgpack.unpackb(data, ext_hook=_unpack_extra, strict_map_key=False))
