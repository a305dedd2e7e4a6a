"""Trainable operators: the author writes the module, how samples are batched, and the forward.

Autograd hand-over between processes, accumulation, the optimizer, weight versions, freezing and
the reduction over replicas are the engine's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

from flowengine.api.operator import Operator
from flowengine.api.shape import TransformerShape
from flowengine.api.spread import spread
from flowengine.api.values import Answer, Features, Outcome, Pack, Sample

M = TypeVar("M", bound=nn.Module)
B = TypeVar("B")


class Trainable(Operator, Generic[M]):
    """An operator with weights."""

    @abstractmethod
    def build(self) -> M:
        """A new module, randomly initialised from torch's default generator, or loaded.

        Parameters that do not require a gradient stay as they are.
        """

    def tensor_plan(self) -> Mapping[str, ParallelStyle]:
        """How a gang's tensor ranks share the module: a style of torch.distributed.tensor.parallel
        for each submodule by name, in which * stands for any part between dots.

        What the operator's `forward`, `loss` and `answers` take and give must be whole tensors, the
        same in all ranks. Empty for a module that cannot be shared so.
        """
        return {}

    def parallelize(self, module: M, mesh: DeviceMesh) -> None:
        """Spreads the module's weights over a gang, in place. mesh: of dimensions "data", "tensor".

        The default shares submodules over "tensor" by `tensor_plan`, and shards all parameters over
        "data" with FSDP2: each item of a ModuleList is gathered by itself, and then the rest.
        """
        spread(module, mesh, self.tensor_plan())

    def origin(self, module: M) -> dict[str, str]:
        """What to write into the weights file's header: where the weights came from, and what is
        needed to put them back there. Empty for weights that were made here."""
        return {}

    def shape(self) -> TransformerShape | None:
        """The dimensions that `flowengine plan` and `simulate` compute its cost from, without
        building it; None where only a profile can tell."""
        return None


class Encoder(Trainable[M], Generic[M, B]):
    """Turns one modality of many samples at once into features.

    `modality` names the entry of `Sample.media` it reads. A sample without that entry gets no
    features, and needs nothing from the author.
    """

    modality: ClassVar[str]

    @abstractmethod
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one feature row, e.g. (width,)."""

    @abstractmethod
    def batch(self, media: Sequence[Tensor]) -> B:
        """What `forward` needs for these media, those of a pack's samples one after the other
        (called without autograd)."""

    @abstractmethod
    def forward(self, module: M, batch: B) -> Tensor:
        """Feature rows [N, *feature_shape] of all samples, in order, `Lengths.media` rows each."""

    def process(self, sample: Sample) -> Features:
        """The port's types; the engine calls `batch` and `forward` on many samples at once."""
        raise TypeError("an encoder is run by the engine, on many samples at once")


class Whole(Protocol):
    """A model in one piece. module: its parameters have the names that they have in the parts."""

    module: nn.Module

    def loss(self, sample: Sample) -> Tensor:
        """The sum of the loss over one sample's targets, media and all."""


class Objective(Trainable[M]):
    """Turns a pack into a loss, and the loss into the gradients of the pack's features.

    Most often a language model over packed samples.
    """

    @abstractmethod
    def loss(self, module: M, pack: Pack) -> Tensor:
        """The *sum* of the loss over the pack's targets, a scalar in at least fp32.

        The engine divides by the number of targets in the whole step, so that packing never
        changes what is minimised.
        """

    @abstractmethod
    def answers(self, module: M, pack: Pack) -> list[Answer]:
        """The predictions for every sample of a held-out pack (called without autograd)."""

    def feature_shapes(self) -> Mapping[str, tuple[int, ...]] | None:
        """The shape of one feature row for each modality it takes; None if it takes whatever comes.

        A graph whose encoders give others is refused before the run.
        """
        return None

    def whole(self, dtype: torch.dtype) -> Whole | None:
        """The model that the graph's parts make up, in one piece; None where there is none.

        `flowengine verify` holds the graph against it. Its weights are those that `build` gives.
        """
        return None

    def process(self, pack: Pack) -> Outcome:
        """The ports' types; the engine calls `loss` and `answers`."""
        raise TypeError("an objective is run by the engine, which owns its backward")
