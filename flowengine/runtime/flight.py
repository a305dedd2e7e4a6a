"""The tensors of an encoder's flights: the forward, and the backward when gradients return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flowengine.api import Encoder
from flowengine.errors import RunError
from flowengine.graph.description import StageSpec
from flowengine.runtime.encoded import Flight
from flowengine.runtime.flops import Efforts
from flowengine.runtime.stage import Stage


@dataclass
class TensorFlight(Flight):
    """outputs: features [N, ...]; with their autograd graph where activations are stashed, dropped
    after sending where they are recomputed from `batch` with the same `module` and `seed`.
    efforts: where its operations are counted, if they are."""

    seed: int
    module: nn.Module
    shape: tuple[int, ...]
    outputs: Tensor | None
    batch: Any = None
    efforts: Efforts | None = None

    def settle(self) -> None:
        """The features have been written to the pool, or are a copy that nobody reads."""
        if self.batch is not None:
            self.outputs = None


def fly(
    stage: StageSpec,
    media: Sequence[Tensor],
    *,
    module: nn.Module,
    step: int,
    seed: int,
    learns: bool,
    dtype: torch.dtype,
    efforts: Efforts | None = None,
) -> TensorFlight:
    """The forward of an encoder on these samples' media. efforts: where it is counted, if it is."""
    encoder: Encoder[Any, Any] = stage.what  # type: ignore[assignment]
    stashes = learns and stage.activations == "stash"
    batch = encoder.batch(media)
    module.train(learns)
    recomputes = learns and not stashes
    with _counting(None if recomputes else efforts, step, learns=learns):
        outputs = _forward(encoder, module, batch, seed=seed, with_graph=stashes)
    wanted = tuple(encoder.feature_shape())
    if tuple(outputs.shape[1:]) != wanted or outputs.dtype != dtype:
        raise RunError(
            f"{stage}: forward gave features of shape {tuple(outputs.shape[1:])} per row and "
            f"{outputs.dtype}; expected feature_shape() = {wanted} and its stage's {dtype}"
        )
    return TensorFlight(
        step=step,
        num_rows=len(outputs),
        num_bytes=outputs.nbytes,
        learns=learns,
        seed=seed,
        module=module,
        shape=tuple(outputs.shape),
        outputs=outputs,
        batch=batch if recomputes else None,
        efforts=efforts,
    )


def land(stage: StageSpec, flight: TensorFlight, gradient: Tensor) -> None:
    """The backward: adds to the gradients of the module that made the features."""
    encoder: Encoder[Any, Any] = stage.what  # type: ignore[assignment]
    outputs = flight.outputs
    if outputs is None:
        flight.module.train()
        with _counting(flight.efforts, flight.step, learns=True):
            outputs = _forward(
                encoder, flight.module, flight.batch, seed=flight.seed, with_graph=True
            )
    torch.autograd.backward(outputs, gradient)


def find_bad_sample(
    encoder: Encoder[Any, Any], media: Mapping[int, Sequence[Tensor]], *, stage: Stage
) -> None:
    """Batches a pack's samples one by one; raises for the first that is refused, with it alone in
    hand. media: by sample."""
    for sample, items in media.items():
        stage.take_in_hand((sample,), stage.work_now)
        if items:
            encoder.batch(items)
    stage.take_in_hand(tuple(media), stage.work_now)


def _counting(efforts: Efforts | None, step: int, *, learns: bool) -> AbstractContextManager[None]:
    return nullcontext() if efforts is None else efforts.counting(step, learns=learns)


def _forward(
    encoder: Encoder[Any, Any], module: nn.Module, batch: Any, *, seed: int, with_graph: bool
) -> Tensor:
    torch.manual_seed(seed)
    with torch.set_grad_enabled(with_graph):
        return encoder.forward(module, batch)
