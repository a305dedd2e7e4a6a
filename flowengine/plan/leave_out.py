"""A graph without one of the parts that make it a flow, to see what the part is worth.

The same switches as those of simulations. There a hand-over without a pool is a step at a time; a
run hands over pack by pack, which is lock-step where there is one objective without pipeline parts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flowengine.api import Lengths, Packer
from flowengine.errors import PlanError
from flowengine.graph import Graph
from flowengine.plan.session import Part
from flowengine.plan.work import stage_of, trainable_stages
from flowengine.schedule.arrival import fill_in_order


class ArrivalPacker(Packer):
    """Packs samples as they come, as many as fit: no scheduler."""

    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        return fill_in_order([each.tokens for each in lengths], max_tokens=self.max_tokens)


def leave_out(graph: Graph, parts: Collection[Part]) -> None:
    """Changes the graph, which was not checked yet, so that it runs without these parts.

    pool: an encoder has one pack in flight; a frozen one, which nothing returns to, is refused.
    allocator: every stage with weights has one worker. scheduler: samples packed as they come.
    """
    encoders, objective = trainable_stages(graph)
    if "pool" in parts:
        for stage in encoders:
            if not stage.trains:
                raise PlanError(
                    f"{stage}: is frozen, so nothing returns to it that it could wait for; leave "
                    "out freeze=True to run without the pool, or simulate it"
                )
            stage.window = 1
    if "allocator" in parts:
        for stage in (*encoders, objective):
            stage.replicas, stage.threads = 1, None
    if "scheduler" in parts:
        stage = stage_of(graph, Packer)
        packer = stage.what
        assert isinstance(packer, Packer)
        stage.what = ArrivalPacker(max_tokens=packer.max_tokens, too_long=packer.too_long)
