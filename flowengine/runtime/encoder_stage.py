"""An encoder at work: forward on a pack's media, and backward when the pack's gradients return.

Rules.
- A replica encodes its packs (every num_replicas-th of a round) in the plan's order, and takes
  their gradients in in the same order, so that every sum has one order.
- Features wait in the encoder's own span until their gradient has been written over them: the
  return needs no credit and no room, so it cannot deadlock.
- With AHEAD packs in flight a returned gradient goes first, with fewer the next pack: the consumer
  never starves for want of features, nor do activations pile up beyond need.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from flowengine.api import Encoder
from flowengine.channel import ROW_BYTES, Inlet, Row
from flowengine.errors import RunError
from flowengine.pool import Payload, Span
from flowengine.runtime.emission import Header, catalogue_entry
from flowengine.runtime.flops import Efforts
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site
from flowengine.runtime.spans import Work
from flowengine.runtime.stage import Stage
from flowengine.runtime.step_end import StepEnd

AHEAD = 3
"""Packs in flight: one being consumed, one waiting, one on its way."""


@dataclass
class Flight:
    """A pack's features, from the forward until their gradient has been taken in.

    num_rows, num_bytes: of the features. learns: whether a gradient will return. span: where the
    features lie in the pool, once sent. returned: whether it holds the gradient.
    """

    step: int
    num_rows: int
    num_bytes: int
    learns: bool
    span: Span | None = field(default=None, init=False)
    returned: bool = field(default=False, init=False)


@dataclass
class _Encoded:
    """Features that wait for room; flight is None for a pack without this modality."""

    round: Round
    pack: int
    rows: list[Row]
    counts: list[int]
    flight: Flight | None
    version: int


class EncoderStage(Stage):
    """When a pack is encoded, sent and taken back; subclasses compute.

    trainer: there once the stage is open, as are dtype, the features', by name, and row_bytes,
    the size of a feature row.
    """

    trainer: StepEnd
    dtype: str
    row_bytes: int

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        assert isinstance(self.spec.what, Encoder)
        self.encoder: Encoder[Any, Any] = self.spec.what
        self._arrived: dict[tuple[int, int], dict[int, tuple[Inlet, Row]]] = {}
        self._encoded: _Encoded | None = None
        self._flights: deque[Flight] = deque()
        self._unreturned = 0
        self._next = site.worker.replica
        self._open_steps: deque[int] = deque()
        self._lag = 0
        self.efforts = Efforts(site, modality=self.encoder.modality)

    @abstractmethod
    def fly(self, round_: Round, version: int, rows: list[Row]) -> Flight | None:
        """The forward of a pack with these weights; None if it has no media for it."""

    @abstractmethod
    def settle(self, flight: Flight, span: Span) -> None:
        """Writes a flight's features to the pool."""

    @abstractmethod
    def land(self, flight: Flight) -> None:
        """The backward of a flight whose span holds the gradient."""

    def open(self) -> None:
        self.encoder.open(self.context())

    def close(self) -> None:
        self.encoder.close()
        if "trainer" in vars(self):
            self.trainer.close()

    def on_gradient(self, address: int, count: int) -> None:
        flight = next(f for f in self._flights if f.span is not None and f.span.address == address)
        assert flight.span is not None
        flight.span.leases -= count
        if flight.span.leases == 0:
            flight.returned = True
            self._unreturned -= 1

    def on_notice(self, subject: str, fields: list[Any]) -> None:
        self.trainer.on_notice(subject, fields)

    def work(self) -> bool:
        if self._encoded is not None:
            return self._send_features(self._encoded) or self._make_room()
        self._collect()
        if self._can_take_back() and self._unreturned >= AHEAD:
            return self._take_back()
        if self._can_encode():
            return self._encode()
        return self._make_room() or self._go_on()

    def _make_room(self) -> bool:
        """Takes a gradient in, or ends a step: also while features wait for the room of those
        whose gradients are back, or they would wait for ever."""
        if self._can_take_back():
            return self._take_back()
        if self._step_is_over():
            step = self._open_steps.popleft()
            self.work_now = Work("optimizer", step)
            self.efforts.tell(step)
            self.trainer.finish_step(step)
            return True
        return False

    def _go_on(self) -> bool:
        if self._round_is_encoded():
            return self._end_round()
        return self._say_why()

    def end(self) -> str:
        return self.trainer.end(finishing=self.finishing)

    # forward

    def _collect(self) -> None:
        for inlet in self.site.inlets:
            while inlet.rows:
                row = inlet.rows.popleft()
                self._arrived.setdefault((row.number, row.pack), {})[row.place] = (inlet, row)

    def _is_complete(self) -> bool:
        round_ = self.rounds.get(self.current)
        if round_ is None or self._next >= len(round_.pack_sizes):
            return False
        arrived = self._arrived.get((self.current, self._next), {})
        return len(arrived) == round_.pack_sizes[self._next]

    def _has_gap(self) -> bool:
        round_ = self.rounds.get(self.current)
        waits = round_ is not None and self._next < len(round_.pack_sizes)
        return waits and self.is_closed() and not self._is_complete()

    def _can_encode(self) -> bool:
        if not self._is_complete() or not self._has_window():
            return False
        return self.trainer.has_version(self._wanted_version())

    def _has_window(self) -> bool:
        return self.spec.window is None or len(self._flights) < self.spec.window

    def _wanted_version(self) -> int:
        round_ = self.rounds[self.current]
        return self.trainer.version_for(round_.step, held_out=round_.held_out)

    def _encode(self) -> bool:
        round_, version = self.rounds[self.current], self._wanted_version()
        arrived = self._arrived.pop((self.current, self._next))
        parts = [arrived[place] for place in range(len(arrived))]
        rows = [row for _, row in parts]
        work = Work("forward", round_.step, round_.held_out, self._next)
        self.take_in_hand(tuple(row.sample for row in rows), work)
        flight = self.fly(round_, version, rows)
        counts = self._count_features(rows, flight)
        for inlet, row in parts:
            inlet.give_back([row])
        if not round_.held_out and self.trainer.trains:
            self._lag = max(self._lag, round_.step - version)
        self._encoded = _Encoded(round_, self._next, rows, counts, flight, version)
        self._next += self.spec.replicas
        self._send_features(self._encoded)
        return True

    def _count_features(self, rows: list[Row], flight: Flight | None) -> list[int]:
        modality = self.encoder.modality
        counts = [
            row.media.get(modality, 0) if row.tree["media"] is not None else 0 for row in rows
        ]
        found = flight.num_rows if flight is not None else 0
        if sum(counts) != found:
            raise RunError(
                f"{self.spec}: forward gave {found} feature rows for samples "
                f"{[row.sample for row in rows]}, whose lengths announce {counts}; expected "
                f"Lengths.media['{modality}'] rows for each"
            )
        return counts

    # sending

    def _send_features(self, encoded: _Encoded) -> bool:
        outlets = [edge.route(encoded.pack) for edge in self.site.edges]
        num_rows, size = len(encoded.rows), len(encoded.rows) * ROW_BYTES
        for edge, outlet in zip(self.site.edges, outlets, strict=True):
            if not outlet.could_hold(num_rows, size):
                raise RunError(
                    f"{self.spec}: pack {encoded.pack} has {num_rows} rows, the channel to "
                    f"'{edge.reader}' holds {outlet.bound_items}; raise its credits=Credits(items=)"
                )
            if not outlet.has_room(num_rows, size):
                return self.wait("blocked", f"credits of '{edge.reader}'")
        flight, span = encoded.flight, None
        if flight is not None:
            span = self.pool.reserve(flight.num_bytes, (encoded.round.number, encoded.pack))
            if span is None:
                return self.wait("blocked", "room in the pool")
            self.settle(flight, span)
            flight.span = span
            if flight.learns:
                self._flights.append(flight)
                self._unreturned += 1
        rows = self._feature_rows(encoded, span, num_readers=len(outlets))
        for outlet in outlets:
            outlet.send(rows)
        self._encoded = None
        return True

    def _feature_rows(self, encoded: _Encoded, span: Span | None, *, num_readers: int) -> list[Row]:
        features = tuple(self.encoder.feature_shape())
        rows, first, now = [], 0, self.site.clock()
        for row, count in zip(encoded.rows, encoded.counts, strict=True):
            shape = (count, *features)
            payload = Payload(b"", 0, 0, self.dtype, shape)
            if count and span is not None:
                offset = first * self.row_bytes
                payload = Payload(None, span.address, offset, self.dtype, shape)
                header = Header.of(row, encoded.round)
                entry = catalogue_entry(self.site, header, payload, now, version=encoded.version)
                span.entries.append(entry)
                span.leases += num_readers
            tree = {"modality": self.encoder.modality, "rows": payload}
            rows.append(row._replace(size=ROW_BYTES, tree=tree))
            first += count
        return rows

    # backward

    def _can_take_back(self) -> bool:
        if not self._flights or not self._flights[0].returned:
            return False
        return self._flights[0].step == self.trainer.version

    def _take_back(self) -> bool:
        flight = self._flights.popleft()
        span = flight.span
        assert span is not None
        pack = span.entries[0]["pack"] if span.entries else -1
        work = Work("backward", flight.step, False, pack)
        self.take_in_hand(tuple(entry["sample"] for entry in span.entries), work)
        self.land(flight)
        for entry in span.entries:
            entry["state"] = "gradient"
        self.pool.release(span.address, 0)
        return True

    # the ends of steps and rounds

    def _round_is_encoded(self) -> bool:
        round_ = self.rounds.get(self.current)
        return round_ is not None and self._next >= len(round_.pack_sizes) and self.is_closed()

    def _end_round(self) -> bool:
        round_ = self.rounds[self.current]
        if not round_.held_out and self.trainer.trains:
            self._open_steps.append(round_.step)
            self.site.notify("encoded", round_.step, self.spec.name, self._lag)
            self._lag = 0
        elif not round_.held_out:
            self.efforts.tell(round_.step)
        self.encoder.flush()
        self._next = self.site.worker.replica
        return self.close_round()

    def _step_is_over(self) -> bool:
        if not self._open_steps or self.trainer.is_finishing:
            return False
        step = self._open_steps[0]
        return step == self.trainer.version and not any(f.step == step for f in self._flights)

    def _has_ended(self) -> bool:
        idle = not self._flights and not self._open_steps and not self.trainer.is_finishing
        return super()._has_ended() and idle and self._encoded is None

    def _say_why(self) -> bool:
        if self.trainer.is_finishing:
            return self.wait("blocked", "the other stages' gradients")
        if self._is_complete() and not self._has_window():
            return self.wait("blocked", f"gradients within window={self.spec.window}")
        if self._has_gap():
            raise self.fail_row(
                f"the samples of pack {self._next} did not all arrive; a stage between the source "
                "and an encoder must give out every sample it takes in"
            )
        if self._flights:
            return self.wait("blocked", "returning gradients")
        return self.wait("starved", "samples")
