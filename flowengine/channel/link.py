"""A pair of workers' connection: one Unix stream socket, both directions, all their channels.

`send` never blocks: what the socket does not take at once waits in the link, and is bounded by the
channels' credits. A peer that dies closes the socket, which `receive` reports once it has given all
that the peer had sent before; what is sent to the dead is dropped.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator

from flowengine.channel.message import FrameReader, Message, encode

_CHUNK = 1 << 18
_NOW = socket.MSG_DONTWAIT
_CORES = len(os.sched_getaffinity(0))


class Link:
    """One end of the socket; closed once the peer has closed its own."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self.connection = connection
        self.closed = False
        self._is_heard = True
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._room = bytearray(_CHUNK)
        self._arrivals = select.poll()
        self._arrivals.register(connection, select.POLLIN)

    def fileno(self) -> int:
        return self.connection.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits for the socket to take it."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Sends now or as soon as the socket takes it; drops it if the peer has gone."""
        frame = encode(message)
        sent = 0 if self._unsent else self._send(frame, _NOW)
        if sent < len(frame):
            self._unsent += frame[sent:]
            self.flush()

    def flush(self) -> None:
        """Gives the socket as much as it takes."""
        while self._unsent and (sent := self._send(self._unsent, _NOW)):
            del self._unsent[:sent]

    def receive(self) -> Iterator[Message]:
        """The messages that have arrived; sets `closed` at the end of the stream."""
        while not self.closed:
            try:
                count = self.connection.recv_into(self._room, 0, _NOW)
            except BlockingIOError:
                return
            except ConnectionResetError:  # Once, if the peer left bytes unread; its own follow.
                continue
            except OSError:
                count = 0
            if not count:
                self.closed = True
                return
            yield from self._reader.feed(memoryview(self._room)[:count])
            if count < _CHUNK:
                return

    def wait(self, timeout_s: float, *, look_s: float = 0.0) -> bool:
        """Blocks until something has arrived or the peer has gone; False after `timeout_s`. Where
        there is a second core for the peer, it keeps looking for `look_s` before it sleeps."""
        if _CORES > 1:
            until = time.perf_counter() + look_s
            while time.perf_counter() < until:
                if self._arrivals.poll(0):
                    return True
        return bool(self._arrivals.poll(1e3 * timeout_s))

    def drain(self) -> None:
        """Blocks until the socket has taken everything, or the peer has gone."""
        while self._unsent:
            del self._unsent[: self._send(self._unsent, 0)]

    def close(self) -> None:
        """Closes this end; may be called twice."""
        self.closed = True
        self.connection.close()

    def _send(self, data: bytes | bytearray, flags: int) -> int:
        """How many bytes the socket took: none if it is full, all if nobody hears them."""
        try:
            if self._is_heard:
                return self.connection.send(data, flags)
        except BlockingIOError:
            return 0
        except OSError:
            self._is_heard = False
        return len(data)
