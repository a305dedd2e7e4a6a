"""An encoder's tensors: its forward, and its backward where it trains."""

from __future__ import annotations

import torch

from flowengine.channel import Row
from flowengine.errors import SampleError
from flowengine.pool import Payload, Pool, Span
from flowengine.pool.payload import dtype_name
from flowengine.runtime.encoded import Flight
from flowengine.runtime.encoder_stage import EncoderStage
from flowengine.runtime.flight import TensorFlight, find_bad_sample, fly, land
from flowengine.runtime.round import Round
from flowengine.runtime.trainer import Trainer


class TensorEncoder(EncoderStage):
    """Runs `batch` and `forward` of an encoder."""

    trainer: Trainer
    pool: Pool

    def open(self) -> None:
        super().open()
        self.trainer = Trainer(self.site, staleness=self.site.graph.staleness)
        self.dtype = dtype_name(self.trainer.dtype)
        shape = tuple(self.encoder.feature_shape())
        self.row_bytes = torch.empty(shape, dtype=self.trainer.dtype).nbytes

    def fly(self, round_: Round, version: int, rows: list[Row]) -> Flight | None:
        media = {row.sample: self.load_media(row.tree["media"]) for row in rows}
        module = self.trainer.module_of(version)
        assert module is not None
        if not any(self.filled):
            return None
        items = [item for each in media.values() for item in each]
        owns = self.filled[self.site.worker.rank]
        if not round_.held_out:
            self.efforts.add_items(round_.step, len(items))
        if self.site.mesh is not None:
            items = self.site.mesh.share_out(items, self.filled)
        try:
            flight = fly(
                self.spec,
                items,
                module=module,
                step=round_.step,
                seed=self.site.seed("forward", round_.number, self._next),
                learns=self.trainer.trains and not round_.held_out,
                dtype=self.trainer.dtype,
                efforts=self.efforts if owns and not round_.held_out else None,
            )
        except SampleError:
            find_bad_sample(self.encoder, media, stage=self)
            raise
        if not owns:
            flight.settle()
        return flight

    def settle(self, flight: Flight, span: Span) -> None:
        assert isinstance(flight, TensorFlight)
        assert flight.outputs is not None
        self.pool.write([flight.outputs.detach()], span)
        flight.settle()

    def land(self, flight: Flight) -> None:
        assert isinstance(flight, TensorFlight)
        if flight.span is not None:
            payload = Payload(None, flight.span.address, 0, self.dtype, flight.shape)
            gradient = self.pool.view(payload)
        else:
            gradient = torch.zeros(flight.shape, dtype=self.trainer.dtype)
        if self.site.mesh is not None:
            self.site.mesh.share_gradient(gradient)
        land(self.spec, flight, gradient)
        self.trainer.absorb(flight.module)
