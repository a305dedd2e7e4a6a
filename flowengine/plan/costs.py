"""What a stage costs, as the planner and the simulator see it: from a profile, or from a shape."""

from __future__ import annotations

from dataclasses import dataclass, field

from flowengine.plan.load import Line, Load


@dataclass(frozen=True)
class Parallel:
    """How a trainable stage is laid out: replicas, each of tensor x pipeline devices.

    recompute: a layer's activations are computed again in its backward, not kept.
    """

    replicas: int = 1
    tensor: int = 1
    pipeline: int = 1
    recompute: bool = False

    @property
    def devices(self) -> int:
        return self.replicas * self.tensor * self.pipeline

    def __str__(self) -> str:
        layout = f"DP {self.replicas} x TP {self.tensor} x PP {self.pipeline}"
        return layout + (" recompute" if self.recompute else "")


@dataclass(frozen=True)
class Memory:
    """Bytes on each device. weights: with gradients and the optimizer's; activations: at most."""

    weights: float = 0.0
    activations: float = 0.0

    @property
    def total(self) -> float:
        return self.weights + self.activations


@dataclass(frozen=True)
class StageCosts:
    """What work takes on one pipeline part of one replica, in seconds.

    modality: whose rows the loads count; TOKENS for an objective. forward, backward: of a pack;
    an empty line where there is no backward. update_s: of a step's end, replicas' sum included.
    flops: of the whole model, forward and backward, what MFU counts. parts: pipeline parts.
    """

    modality: str
    forward: Line
    backward: Line = field(default_factory=Line)
    update_s: float = 0.0
    flops: Line = field(default_factory=Line)
    memory: Memory = field(default_factory=Memory)
    parts: int = 1

    @property
    def learns(self) -> bool:
        """Whether its packs have a backward."""
        return self.backward != Line()

    def pack_s(self, load: Load) -> float:
        """Forward and backward of a pack on one part."""
        return self.forward.seconds(load) + self.backward.seconds(load)
