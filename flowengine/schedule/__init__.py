"""What a pack costs, and which samples share one."""

from flowengine.schedule.balancing import balance
from flowengine.schedule.cost import Cost, flowtrain_cost, model_cost
from flowengine.schedule.fit import Drift, Fit, RunningFit, fit_cost
from flowengine.schedule.lengths import TooLong, TooLongError
from flowengine.schedule.limits import FINE, Limits, count_cost
from flowengine.schedule.packing import least_packs, pack
from flowengine.schedule.step import plan_step
from flowengine.schedule.stream import Outliers, StreamPacker
from flowengine.schedule.warm import warm, warm_balance, warm_stream

__all__ = [
    "Cost",
    "Drift",
    "FINE",
    "Fit",
    "Limits",
    "Outliers",
    "RunningFit",
    "StreamPacker",
    "TooLong",
    "TooLongError",
    "balance",
    "count_cost",
    "fit_cost",
    "flowtrain_cost",
    "least_packs",
    "model_cost",
    "pack",
    "plan_step",
    "warm",
    "warm_balance",
    "warm_stream",
]
