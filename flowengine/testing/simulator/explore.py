"""Many seeds, one after the other: what they come to, and which planted mistakes they find."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flowengine.testing.simulator.mistakes import Mistake
from flowengine.testing.simulator.run import simulate

COLLECT_EVERY = 200
"""Seeds between two looks for garbage: a run's parts refer to each other."""


@dataclass
class Explored:
    """seconds: of processor time. events, incarnations, faults: in all runs. failed: the errors, by
    seed."""

    seeds: int = 0
    seconds: float = 0.0
    events: int = 0
    incarnations: int = 0
    faults: int = 0
    failed: dict[int, str] = field(default_factory=dict)


def explore(seeds: Iterable[int], *, stop_at_failure: bool = False) -> Explored:
    """Simulates these seeds."""
    found, began = Explored(), time.process_time()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for seed in seeds:
            found.seeds += 1
            if found.seeds % COLLECT_EVERY == 0:
                gc.collect()
            try:
                simulation = simulate(seed)
            except Exception as error:
                found.failed[seed] = f"{type(error).__name__}: {error}"
                if stop_at_failure:
                    break
            else:
                found.events += simulation.events
                found.incarnations += simulation.incarnations
                found.faults += simulation.faults
    finally:
        if was_enabled:
            gc.enable()
    found.seconds = time.process_time() - began
    return found


def find(mistake: Mistake, seeds: Sequence[int]) -> Explored:
    """Simulates until the mistake, which is planted, is found."""
    with mistake.planted():
        return explore(seeds, stop_at_failure=True)
