"""The protocol, simulated: the runtimes' own stages, channels, leases, ledger and recovery, in one
thread, with every interleaving and every fault chosen by a seed.

    python -m flowengine.testing.simulator --seeds 1000
    python -m flowengine.testing.simulator --seed 4711            # once more, and told
    python -m flowengine.testing.simulator --seed 8 --mistake "a credit is lost"

What is simulated: the order in which workers work and messages arrive, workers and supervisors that
die at any point, writes that are torn, poison samples, interrupts. What stands in for something:
numbers for tensors (numbers.py), a disk that keeps what was written (disk.py). What is not:
sockets, shared memory, the disk tier; the local runtime's own tests are for those.
"""

from flowengine.testing.simulator.explore import Explored, explore, find
from flowengine.testing.simulator.mistakes import MISTAKES, Mistake
from flowengine.testing.simulator.run import Simulation, simulate
from flowengine.testing.simulator.shrink import Failure, fail, shrink

__all__ = [
    "MISTAKES",
    "Explored",
    "Failure",
    "Mistake",
    "Simulation",
    "explore",
    "fail",
    "find",
    "shrink",
    "simulate",
]
