"""What a pack costs, and which samples share one."""

from flowengine.schedule.balancing import balance
from flowengine.schedule.cost import Cost, flowtrain_cost
from flowengine.schedule.lengths import TooLong, TooLongError
from flowengine.schedule.packing import least_packs, pack
from flowengine.schedule.step import plan_step
from flowengine.schedule.stream import StreamPacker
from flowengine.schedule.warm import warm

__all__ = [
    "Cost",
    "StreamPacker",
    "TooLong",
    "TooLongError",
    "balance",
    "flowtrain_cost",
    "least_packs",
    "pack",
    "plan_step",
    "warm",
]
