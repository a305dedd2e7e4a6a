"""A pair of workers' connection: one Unix stream socket, both directions, all their channels.

`send` never blocks: what the socket does not take at once waits in the link, and is bounded by the
channels' credits. A peer that dies closes the socket, which `receive` reports.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from flowengine.channel.message import FrameReader, Message, encode

_CHUNK = 1 << 18


class Link:
    """One end of the socket; closed once the peer has closed its own."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.closed = False
        self._reader = FrameReader()
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self.connection.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits for the socket to take it."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Sends now or as soon as the socket takes it; drops it if the peer has gone."""
        self._unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        """Gives the socket as much as it takes."""
        try:
            while self._unsent and not self.closed:
                sent = self.connection.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except OSError:
            self.closed = True
        if self.closed:
            self._unsent.clear()

    def receive(self) -> Iterator[Message]:
        """The messages that have arrived; sets `closed` at the end of the stream."""
        while not self.closed:
            try:
                data = self.connection.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.closed = True
                return
            yield from self._reader.feed(data)
            if len(data) < _CHUNK:
                return

    def drain(self) -> None:
        """Blocks until the socket has taken everything, or the peer has gone."""
        self.connection.setblocking(True)
        while self.wants_to_write:
            self.flush()

    def close(self) -> None:
        """Closes this end; may be called twice."""
        self.closed = True
        self.connection.close()
