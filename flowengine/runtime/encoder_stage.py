"""An encoder at work: forward on a pack's media, and backward when the pack's gradients return.

Rules.
- A replica encodes its packs (every num_replicas-th of a round) in the plan's order, and takes
  their gradients in in the same order, so that every sum has one order.
- Features wait in the encoder's own span until their gradient has been written over them: the
  return needs no credit and no room, so it cannot deadlock.
- In a gang all ranks encode a slot of packs, one per way, at once, and take its gradients in at
  once. A rank whose pack has no media works on a copy of another's, with a gradient of zero; one
  that does not lead works on its leader's. A slot without media is no work for anybody.
- With AHEAD packs in flight a returned gradient goes first, with fewer the next pack: the consumer
  never starves for want of features, nor do activations pile up beyond need.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Any

from flowengine.api import Encoder
from flowengine.channel import ROW_BYTES, Inlet, Row
from flowengine.errors import RunError
from flowengine.pool import Span
from flowengine.runtime.encoded import Encoded, Flight, count_features, feature_rows
from flowengine.runtime.flops import Efforts
from flowengine.runtime.muster import Order
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site
from flowengine.runtime.spans import Work
from flowengine.runtime.stage import OTHER_RANKS, Stage
from flowengine.runtime.step_end import StepEnd

AHEAD = 3
"""Packs in flight: one being consumed, one waiting, one on its way."""


class EncoderStage(Stage):
    """When a pack is encoded, sent and taken back; subclasses compute.

    trainer: there once the stage is open, as are dtype, the features', by name, and row_bytes,
    the size of a feature row. filled: by rank of the gang, whose pack has media in the slot now.
    """

    trainer: StepEnd
    dtype: str
    row_bytes: int

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        assert isinstance(self.spec.what, Encoder)
        self.encoder: Encoder[Any, Any] = self.spec.what
        self._arrived: dict[tuple[int, int], dict[int, tuple[Inlet, Row]]] = {}
        self._encoded: Encoded | None = None
        self._flights: deque[Flight] = deque()
        self._unreturned = 0
        self._next = site.worker.way
        self.filled: tuple[bool, ...] = ()
        self._open_steps: deque[int] = deque()
        self._lag = 0
        self.efforts = Efforts(site, modality=self.encoder.modality)

    @abstractmethod
    def fly(self, round_: Round, version: int, rows: list[Row]) -> Flight | None:
        """The forward of a pack with these weights, or of a copy of another rank's; None if no rank
        has media for it."""

    @abstractmethod
    def settle(self, flight: Flight, span: Span) -> None:
        """Writes a flight's features to the pool."""

    @abstractmethod
    def land(self, flight: Flight) -> None:
        """The backward of a flight: its span holds the gradient, which is zero without one."""

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
        if self._encoded is not None and self._send_features(self._encoded):
            return True
        self._collect()
        able = self._able()
        order = self.muster.agree(able, filled=self._has_media())
        if order is not None:
            return self._obey(order)
        if self._encoded is not None:
            return False
        if self._round_is_encoded():
            return self._end_round()
        return self.wait("blocked", OTHER_RANKS) if able else self._say_why()

    def _able(self) -> list[str]:
        """What could be done now, the preferred first. Gradients are taken in, and steps ended,
        also while features wait for room, which those whose gradients are back have."""
        able = ["forward"] if self._encoded is None and self._can_encode() else []
        if self._can_take_back():
            able.insert(0 if self._unreturned >= AHEAD else len(able), "backward")
        return [*able, "update"] if self._step_is_over() else able

    def _obey(self, order: Order) -> bool:
        if order.action == "forward":
            self.filled = order.filled
            self._encode()
        elif order.action == "backward":
            self._take_back()
        else:
            step = self._open_steps.popleft()
            self.work_now = Work("optimizer", step)
            self.efforts.tell(step)
            self.trainer.finish_step(step)
        return True

    def end(self) -> str:
        return self.trainer.end(finishing=self.finishing)

    # forward

    def _collect(self) -> None:
        for inlet in self.site.inlets:
            while inlet.rows:
                row = inlet.rows.popleft()
                self._arrived.setdefault((row.number, row.pack), {})[row.place] = (inlet, row)

    def _is_complete(self) -> bool:
        """Whether the next slot's pack has arrived, or is none of this worker's."""
        round_ = self.rounds.get(self.current)
        if round_ is None or self._next - self.site.worker.way >= len(round_.pack_sizes):
            return False
        if not self.site.worker.leads or self._next >= len(round_.pack_sizes):
            return True
        arrived = self._arrived.get((self.current, self._next), {})
        return len(arrived) == round_.pack_sizes[self._next]

    def _has_gap(self) -> bool:
        round_ = self.rounds.get(self.current)
        waits = round_ is not None and self._next < len(round_.pack_sizes)
        waits = waits and self.site.worker.leads
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

    def _has_media(self) -> bool:
        arrived = self._arrived.get((self.current, self._next), {})
        return any(row.tree["media"] not in (None, ()) for _, row in arrived.values())

    def _encode(self) -> None:
        round_, version = self.rounds[self.current], self._wanted_version()
        arrived = self._arrived.pop((self.current, self._next), {})
        parts = [arrived[place] for place in range(len(arrived))]
        rows = [row for _, row in parts]
        work = Work("forward", round_.step, round_.held_out, self._next)
        self.take_in_hand(tuple(row.sample for row in rows), work)
        flight = self.fly(round_, version, rows)
        own = flight if self.filled[self.site.worker.rank] else None
        counts = count_features(self.spec, rows, own)
        for inlet, row in parts:
            inlet.give_back([row])
        if not round_.held_out and self.trainer.trains:
            self._lag = max(self._lag, round_.step - version)
        if flight is not None and own is None and flight.learns:
            flight.returned = True
            self._flights.append(flight)
        if rows:
            self._encoded = Encoded(round_, self._next, rows, counts, own, version)
        self._next += self.spec.ways
        if self._encoded is not None:
            self._send_features(self._encoded)

    # sending

    def _send_features(self, encoded: Encoded) -> bool:
        outlets = [edge.route(encoded.pack) for edge in self.site.edges]
        num_rows, size = len(encoded.rows), len(encoded.rows) * ROW_BYTES
        for edge, outlet in zip(self.site.edges, outlets, strict=True):
            if not outlet.could_hold(num_rows, size):
                raise RunError(
                    f"{self.spec}: pack {encoded.pack} has {num_rows} rows, the channel to "
                    f"'{edge.reader}' holds {outlet.bound_items}; raise its credits=Credits(items=)"
                )
            if not outlet.has_room(num_rows, size):
                return self.hold_up(f"credits of '{edge.reader}'")
        flight, span = encoded.flight, None
        if flight is not None:
            span = self.pool.reserve(flight.num_bytes, (encoded.round.number, encoded.pack))
            if span is None:
                return self.hold_up("room in the pool")
            self.settle(flight, span)
            flight.span = span
            if flight.learns:
                self._flights.append(flight)
                self._unreturned += 1
        rows = feature_rows(
            self.site,
            encoded,
            span,
            dtype=self.dtype,
            row_bytes=self.row_bytes,
            readers=len(outlets),
        )
        for outlet in outlets:
            outlet.send(rows)
        self._encoded = None
        return True

    # backward

    def _can_take_back(self) -> bool:
        if not self._flights or not self._flights[0].returned:
            return False
        return self._flights[0].step == self.trainer.version

    def _take_back(self) -> None:
        flight = self._flights.popleft()
        entries = flight.span.entries if flight.span is not None else []
        pack = entries[0]["pack"] if entries else -1
        work = Work("backward", flight.step, False, pack)
        self.take_in_hand(tuple(entry["sample"] for entry in entries), work)
        self.land(flight)
        for entry in entries:
            entry["state"] = "gradient"
        if flight.span is not None:
            self.pool.release(flight.span.address, 0)

    # the ends of steps and rounds

    def _round_is_encoded(self) -> bool:
        round_ = self.rounds.get(self.current)
        slot = self._next - self.site.worker.way
        return round_ is not None and slot >= len(round_.pack_sizes) and self.is_closed()

    def _end_round(self) -> bool:
        round_ = self.rounds[self.current]
        if not round_.held_out and self.trainer.trains:
            self._open_steps.append(round_.step)
            if self.site.worker.leads:
                self.site.notify("encoded", round_.step, self.spec.name, self._lag)
            self._lag = 0
        elif not round_.held_out:
            self.efforts.tell(round_.step)
        self.encoder.flush()
        self._next = self.site.worker.way
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
            return self.hold_up(f"gradients within window={self.spec.window}")
        if self._has_gap():
            raise self.fail_row(
                f"the samples of pack {self._next} did not all arrive; a stage between the source "
                "and an encoder must give out every sample it takes in"
            )
        if self._flights:
            return self.wait("blocked", "returning gradients")
        return self.wait("starved", "samples")
