"""What a simulation comes to: rates, how busy the devices are, and what the others wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.plan.deployment import Deployment, StepWork
from flowengine.plan.device import Device
from flowengine.plan.flow import Flow

WARM = 3
"""Steps that do not count: pool and pipeline fill."""


@dataclass(frozen=True)
class Figures:
    """Over the steps after the first WARM.

    step_s: mean time between ends of steps. mfu: model FLOPs (forward and backward, no recompute)
    over what the devices could do; None without a device's peak. bubbles: per stage, share of its
    time by cause, "busy" among them.
    """

    step_s: float
    samples_per_s: float
    tokens_per_s_per_device: float
    devices: int
    mfu: float | None
    bubbles: dict[str, dict[str, float]]

    def to_json(self) -> dict[str, Any]:
        """As the commands print it."""
        return dict(vars(self))


def simulate(
    deployment: Deployment, steps: Sequence[StepWork], *, device: Device | None = None
) -> tuple[Figures, Flow]:
    """Runs these steps, more than WARM of them, through the deployment."""
    if len(steps) <= WARM:
        raise ValueError(
            f"simulate: {len(steps)} steps; expected more than the {WARM} that warm up"
        )
    flow = Flow(deployment, steps)
    flow.run()
    return find_figures(flow, device=device), flow


def find_figures(flow: Flow, *, device: Device | None) -> Figures:
    """The figures of a flow that was run."""
    began, ended = flow.ends[WARM - 1], flow.ends[-1]
    took, counted = ended - began, flow.steps[WARM:]
    devices = flow.deployment.devices
    mfu = None
    if device is not None:
        mfu = model_flops(flow.deployment, counted) / (took * devices * device.bf16)
    return Figures(
        step_s=took / len(counted),
        samples_per_s=sum(step.samples for step in counted) / took,
        tokens_per_s_per_device=sum(step.tokens for step in counted) / took / devices,
        devices=devices,
        mfu=mfu,
        bubbles=_bubbles(flow, began, ended),
    )


def model_flops(deployment: Deployment, steps: Sequence[StepWork]) -> float:
    """FLOPs of the models on these steps, forward and backward, whatever is recomputed."""
    stages = (*deployment.encoders, deployment.objective)
    return sum(
        stage.costs.flops.seconds(pack.loads[stage.costs.modality])
        for step in steps
        for pack in step.packs
        for stage in stages
    )


def _bubbles(flow: Flow, began: float, ended: float) -> dict[str, dict[str, float]]:
    shares: dict[str, dict[str, float]] = {actor.stage: defaultdict(float) for actor in flow.actors}
    count: dict[str, int] = defaultdict(int)
    for actor in flow.actors:
        count[actor.stage] += 1
    for stretch in flow.clock.stretches:
        within = min(stretch.ended, ended) - max(stretch.began, began)
        if within > 0:
            name = flow.actors[stretch.actor].stage
            cause = "busy" if stretch.state == "busy" else f"{stretch.state}: {stretch.what}"
            shares[name][cause] += within / (ended - began) / count[name]
    return {name: dict(causes) for name, causes in shares.items()}
