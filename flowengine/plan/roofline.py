"""Costs of transformers before anything was measured, from their shapes and a device's data sheet.

Assumptions, the same for every model and device:

- A matrix of p weights takes 2 p FLOPs per position forward, 2 p for the gradient of its input and
  2 p for that of its weights; scores and weighted values take 4 * heads * head_width FLOPs per
  layer and pair of positions, half of it where a mask hides half (Kaplan et al. 2020, table 1;
  Chowdhery et al. 2022, appendix B).
- Matrices run at LINEAR of the peak, what large ones reach in practice (0.80 on H100 and 0.87 on
  A100, after the "maximum achievable matmul FLOPS" of Bekman's ML Engineering, 2024); attention at
  ATTENTION (FlashAttention-2: 0.50 to 0.73 of an A100 forward, less backward; arXiv 2307.08691).
- All other kernels read and write their activations once: 34 * width bytes per position and layer
  forward in 16 bits (Korthikanti et al. 2022, arXiv 2205.05198, without the scores), twice that
  backward; they do not overlap with matrices. This is what makes small models slower per FLOP.
- Tensor parallelism sums activations twice per layer and direction, over the node's link, with
  sequence parallelism; links give LINK of their figure; nothing overlaps.
- At a step's end gradients are summed and weights gathered over the replicas, 2 bytes each. The sum
  hides behind the backward of one mean pack, the gathering behind a forward; Adam reads and writes
  28 bytes per weight of the shard.
- Memory: 2 bytes per frozen weight; 6 + 12 / replicas per trained one (Megatron-LM's distributed
  optimizer, bf16 with fp32 gradients); 34 * width bytes of activations per position and layer, or
  2 * width with recompute; as many packs in flight as pipeline parts; 6 bytes per logit.
"""

from __future__ import annotations

from flowengine.api import TransformerShape
from flowengine.plan.costs import Memory, Parallel, StageCosts
from flowengine.plan.device import Device, Fleet
from flowengine.plan.load import Line, Load

LINEAR = 0.80
ATTENTION = 0.45
LINK = 0.75
ACTIVATION_BYTES = 34
"""Per position, layer and channel."""

IN_FLIGHT = 3
"""Packs whose activations a trained encoder keeps (flowengine.runtime.encoder_stage)."""


def roofline_costs(
    shape: TransformerShape,
    *,
    modality: str,
    trains: bool,
    returns: bool,
    parallel: Parallel,
    fleet: Fleet,
    largest: Load,
    mean: Load,
) -> StageCosts:
    """The costs of one pipeline part.

    trains: whether weights are updated. returns: whether the gradient of its inputs is wanted (an
    objective behind a trained encoder). largest: the load of the largest pack, which the memory for
    activations is for. mean: that of the mean pack, which communication hides behind.
    """
    device = fleet.device
    once = _forward_flops(shape)
    again = (2.0 if trains else 1.0) if trains or returns else 0.0
    split = parallel.tensor * parallel.pipeline
    forward = _compute(once, device, split) + _traffic(shape, device, parallel)
    weights_backward = _compute(Line(row=once.row), device, split).scaled(again)
    scores_backward = _compute(Line(square=once.square), device, split).scaled(min(again * 2, 2.0))
    backward = Line()
    if again:
        backward = weights_backward + scores_backward
        backward += _traffic(shape, device, parallel).scaled(2.0)
        if parallel.recompute:
            backward += forward
    hides = forward.seconds(mean), backward.seconds(mean)
    wanted = Line(row=once.row * (1 + again), square=once.square * (1 + min(again * 2, 2.0)))
    return StageCosts(
        modality=modality,
        forward=forward,
        backward=backward,
        update_s=_update_s(shape, fleet, parallel, hides=hides) if trains else 0.0,
        flops=wanted,
        memory=_memory(shape, parallel, trains=trains, learns=again > 0, largest=largest),
        parts=parallel.pipeline,
    )


def _forward_flops(shape: TransformerShape) -> Line:
    """FLOPs of a forward, per feature row (or token) and per square of a sample's rows."""
    each = shape.positions_per_row
    matrices = shape.layers * shape.block_weights + shape.vocabulary * shape.width
    pairs = shape.layers * shape.attention_width * (2 if shape.causal else 4)
    row = 2 * (each * (matrices + shape.position_weights) + shape.row_weights)
    return Line(row=row, square=pairs * each * each)


def _compute(flops: Line, device: Device, split: int) -> Line:
    return Line(
        row=flops.row / (LINEAR * device.bf16 * split),
        square=flops.square / (ATTENTION * device.bf16 * split),
    )


def _traffic(shape: TransformerShape, device: Device, parallel: Parallel) -> Line:
    """Seconds for activations in memory and over links, forward, per row."""
    positions = shape.positions_per_row
    layers = shape.layers / parallel.pipeline
    memory = 2 * ACTIVATION_BYTES * shape.width * layers / (parallel.tensor * device.bandwidth)
    sums = 2 * layers * 2 * (parallel.tensor - 1) / parallel.tensor * 2 * shape.width
    hops = 2 * shape.width / parallel.tensor if parallel.pipeline > 1 else 0
    links = sums / (LINK * device.link) + hops / (LINK * device.network)
    return Line(row=positions * (memory + links))


def _update_s(
    shape: TransformerShape, fleet: Fleet, parallel: Parallel, *, hides: tuple[float, float]
) -> float:
    weights = shape.num_weights / (parallel.tensor * parallel.pipeline)
    replicas = parallel.replicas
    within = parallel.devices <= fleet.node_size
    rate = LINK * (fleet.device.link if within else fleet.device.network)
    each = 2 * weights * (replicas - 1) / replicas / rate
    adam = 28 * weights / replicas / fleet.device.bandwidth
    return sum(max(0.0, each - hidden) for hidden in hides) + adam


def _memory(
    shape: TransformerShape, parallel: Parallel, *, trains: bool, learns: bool, largest: Load
) -> Memory:
    split = parallel.tensor * parallel.pipeline
    each = (6 + 12 / parallel.replicas) if trains else 2.0
    positions = largest.rows * shape.positions_per_row
    layer = ACTIVATION_BYTES * shape.width * positions / parallel.tensor
    kept = 2 * shape.width * positions / parallel.tensor if parallel.recompute else layer
    per_part = kept * shape.layers / parallel.pipeline
    flights = parallel.pipeline if shape.vocabulary else IN_FLIGHT
    logits = 6 * shape.vocabulary * positions / parallel.tensor
    first = flights * per_part + layer
    last = per_part + layer + logits
    held = max(first, last) if learns else layer
    return Memory(weights=shape.num_weights * each / split, activations=held)
