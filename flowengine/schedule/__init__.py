"""What a pack costs, and which samples share one."""

from flowengine.schedule.cost import Cost, flowtrain_cost
from flowengine.schedule.packing import TooLongError, balance, pack, warm

__all__ = ["Cost", "TooLongError", "balance", "flowtrain_cost", "pack", "warm"]
