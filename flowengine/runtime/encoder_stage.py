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

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flowengine.api import Encoder
from flowengine.channel import ROW_BYTES, Inlet, Row
from flowengine.errors import RunError
from flowengine.pool import Payload, Span
from flowengine.pool.payload import dtype_name
from flowengine.runtime.emission import Header, catalogue_entry
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site
from flowengine.runtime.stage import Stage
from flowengine.runtime.trainer import Trainer

AHEAD = 3
"""Packs in flight: one being consumed, one waiting, one on its way."""


@dataclass
class _Flight:
    """A pack whose features are out. outputs: the forward's result, or None to recompute it."""

    step: int
    pack: int
    seed: int
    module: nn.Module
    span: Span
    batch: Any
    outputs: Tensor | None
    shape: tuple[int, ...]
    returned: bool = False


@dataclass
class _Encoded:
    """Features that wait for room."""

    round: Round
    pack: int
    rows: list[tuple[Inlet, Row]]
    counts: list[int]
    outputs: Tensor | None
    flight: _Flight | None
    version: int


class EncoderStage(Stage):
    """Runs `batch` and `forward` of an encoder, and its backward where it trains."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        assert isinstance(self.spec.what, Encoder)
        self._encoder: Encoder[Any, Any] = self.spec.what
        self._arrived: dict[tuple[int, int], dict[int, tuple[Inlet, Row]]] = {}
        self._flights: deque[_Flight] = deque()
        self._encoded: _Encoded | None = None
        self._next = site.worker.replica
        self._unreturned = 0
        self._open_steps: deque[int] = deque()
        self._lag = 0

    def open(self) -> None:
        self._encoder.open(self.site.context())
        self.trainer = Trainer(self.site, staleness=self.site.graph.staleness)

    def close(self) -> None:
        self._encoder.close()

    def on_gradient(self, address: int, count: int) -> None:
        flight = next(f for f in self._flights if f.span.address == address)
        if flight.span.leases > count:
            flight.span.leases -= count
            return
        flight.returned = True
        self._unreturned -= 1

    def on_notice(self, subject: str, fields: list[Any]) -> None:
        self.trainer.on_notice(subject, fields)

    def work(self) -> bool:
        if self._encoded is not None:
            return self._send_features()
        self._collect()
        if self._can_take_back() and self._unreturned >= AHEAD:
            return self._take_back()
        if self._can_encode():
            return self._encode()
        if self._can_take_back():
            return self._take_back()
        if self._step_is_over():
            step = self._open_steps.popleft()
            self.trainer.finish_step(step)
            return True
        if self._round_is_encoded():
            return self._end_round()
        return self._say_why()

    def end(self) -> str:
        return self.trainer.save()

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

    def _can_encode(self) -> bool:
        if not self._is_complete() or not self._has_window():
            return False
        return self.trainer.module_of(self._wanted_version()) is not None

    def _wanted_version(self) -> int:
        round_ = self.rounds[self.current]
        return self.trainer.version_for(round_.step, held_out=round_.held_out)

    def _has_window(self) -> bool:
        return self.spec.window is None or len(self._flights) < self.spec.window

    def _encode(self) -> bool:
        round_ = self.rounds[self.current]
        arrived = self._arrived.pop((self.current, self._next))
        parts = [arrived[place] for place in range(len(arrived))]
        self.take_in_hand(tuple(row.sample for _, row in parts))
        media = [row.tree["media"] for _, row in parts]
        loaded = [self.load(item) for item in media if isinstance(item, Payload)]
        version = self._wanted_version()
        module = self.trainer.module_of(version)
        assert module is not None
        outputs, flight, counts = None, None, [0] * len(parts)
        if loaded:
            batch = self._encoder.batch(loaded)
            del loaded
            outputs, flight = self._forward(round_, module, batch)
            counts = self._counts(parts, outputs)
        encoded = _Encoded(round_, self._next, parts, counts, outputs, flight, version)
        for inlet, row in parts:
            inlet.give_back([row])
        if not round_.held_out and self.trainer.trains:
            self._lag = max(self._lag, round_.step - version)
        self._encoded = encoded
        self._next += self.spec.replicas
        self._send_features()
        return True

    def _forward(
        self, round_: Round, module: nn.Module, batch: Any
    ) -> tuple[Tensor, _Flight | None]:
        learns = self.trainer.trains and not round_.held_out
        seed = self.site.seed("forward", round_.number, self._next)
        stashes = learns and self.spec.activations == "stash"
        torch.manual_seed(seed)
        with torch.set_grad_enabled(stashes):
            outputs = self._encoder.forward(module, batch)
        shape = tuple(outputs.shape)
        if shape[1:] != tuple(self._encoder.feature_shape()):
            raise RunError(
                f"{self.spec}: forward gave features of shape {shape[1:]} per row, but "
                f"feature_shape() says {tuple(self._encoder.feature_shape())}"
            )
        if not learns:
            return outputs, None
        flight = _Flight(
            step=round_.step,
            pack=self._next,
            seed=seed,
            module=module,
            span=Span(0, 0),
            batch=None if stashes else batch,
            outputs=outputs if stashes else None,
            shape=shape,
        )
        return outputs, flight

    def _counts(self, parts: list[tuple[Inlet, Row]], outputs: Tensor) -> list[int]:
        modality = self._encoder.modality
        counts = [
            row.media.get(modality, 0) if isinstance(row.tree["media"], Payload) else 0
            for _, row in parts
        ]
        if sum(counts) != len(outputs):
            samples = [row.sample for _, row in parts]
            raise RunError(
                f"{self.spec}: forward gave {len(outputs)} feature rows for samples {samples}, "
                f"whose lengths announce {counts}; forward must give Lengths.media rows each"
            )
        return counts

    # sending

    def _send_features(self) -> bool:
        encoded = self._encoded
        assert encoded is not None
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
        span = None
        if encoded.outputs is not None:
            span = self.pool.reserve(encoded.outputs.nbytes)
            if span is None:
                return self.wait("blocked", "room in the pool")
        rows = self._feature_rows(encoded, span, num_readers=len(outlets))
        for outlet in outlets:
            outlet.send(rows)
        if encoded.flight is not None:
            assert span is not None
            encoded.flight.span = span
            self._flights.append(encoded.flight)
            self._unreturned += 1
        self._encoded = None
        return True

    def _feature_rows(self, encoded: _Encoded, span: Span | None, *, num_readers: int) -> list[Row]:
        features, dtype = self._encoder.feature_shape(), getattr(torch, self.site.graph.dtype)
        if encoded.outputs is not None and span is not None:
            dtype = encoded.outputs.dtype
            self.pool.write([encoded.outputs.detach()], span)
        row_bytes = torch.empty(features, dtype=dtype).nbytes
        rows, first, now = [], 0, self.site.clock()
        for (_, row), count in zip(encoded.rows, encoded.counts, strict=True):
            shape = (count, *features)
            if count and span is not None:
                payload = Payload(None, span.address, first * row_bytes, dtype_name(dtype), shape)
                header = Header.of(row, encoded.round)
                entry = catalogue_entry(self.site, header, payload, now, version=encoded.version)
                span.entries.append(entry)
                span.leases += num_readers
            else:
                payload = Payload(b"", 0, 0, dtype_name(dtype), shape)
            tree = {"modality": self._encoder.modality, "rows": payload}
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
        self.take_in_hand(tuple(entry["sample"] for entry in flight.span.entries))
        outputs = flight.outputs
        if outputs is None:
            torch.manual_seed(flight.seed)
            with torch.enable_grad():
                outputs = self._encoder.forward(flight.module, flight.batch)
        dtype = dtype_name(outputs.dtype)
        gradient = self.pool.view(Payload(None, flight.span.address, 0, dtype, flight.shape))
        torch.autograd.backward(outputs, gradient)
        for entry in flight.span.entries:
            entry["state"] = "gradient"
        self.pool.release(flight.span.address, flight.span.leases)
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
        if self._flights:
            return self.wait("blocked", "returning gradients")
        return self.wait("starved", "samples")
