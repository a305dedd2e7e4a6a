"""A whole simulated run: incarnation after incarnation, launch after launch, until it is through.

A launch is what a user starts: the first, and one for every time that the supervisor has ended or
was interrupted, which goes on behind the newest checkpoint. Within one, a worker's death begins
the next incarnation, as flowengine.runtime.recovery decides.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flowengine.channel import Message
from flowengine.errors import RunError, WorkerLostError
from flowengine.runtime.recovery import ATTEMPTS, Recovery
from flowengine.runtime.start import BEGINNING, Start, start_from
from flowengine.testing.simulator.choices import Choices
from flowengine.testing.simulator.disk import Disk
from flowengine.testing.simulator.faults import (
    Fault,
    Killed,
    Poison,
    SupervisorEnded,
    draw_faults,
)
from flowengine.testing.simulator.graphs import topology_of
from flowengine.testing.simulator.settings import NUM_SETTINGS, setting
from flowengine.testing.simulator.watch import breaks, too_long
from flowengine.testing.simulator.world import Incarnation

MOST_RESTARTS = 12
MOST_INCARNATIONS = 60
POISONED = ("source", "image", "model", "pass_on")


class Simulation:
    """A run that these choices make. faults, events, incarnations: how many there were."""

    def __init__(self, choices: Choices, *, trace: Callable[[str], None] | None = None) -> None:
        self.choices = choices
        self.trace = trace
        self.given = setting(choices.below(NUM_SETTINGS))
        self.faults = 0
        self.events = 0
        self._todo = draw_faults(choices, most=(0, 1, 3, 9)[choices.below(4)])
        self._poison = self._draw_poison()
        self._disk = Disk()
        self._ticks = 0
        self.incarnations = 0
        self._deaths: Counter[int] = Counter()
        self._mail: dict[tuple[int, int], deque[tuple[int, Message]]] = {}
        self._interrupted = False

    def run(self) -> None:
        """To the end; BrokenError, or another error of the protocol's own, where it is at fault."""
        while not self._run_launch():
            if self.choices.below(3) == 2:
                self.given = replace(self.given, encoders=3 - self.given.encoders)

    def _draw_poison(self) -> Poison | None:
        if self.choices.below(5) < 4:
            return None
        sample = self.choices.below(self.given.num_samples)
        return Poison(sample, POISONED[self.choices.below(len(POISONED))])

    def _run_launch(self) -> bool:
        """Whether the run is through."""
        start = self._newest() or BEGINNING
        recovery = Recovery(start, newest=self._newest, max_restarts=MOST_RESTARTS)
        self._interrupted = False
        while True:
            self.incarnations += 1
            if self.incarnations > MOST_INCARNATIONS:
                breaks(f"not at its end after {MOST_INCARNATIONS} incarnations")
            try:
                world = self._begin(start)
                try:
                    world.run()
                finally:
                    self.events += world.events
                return self._end(world, start)
            except WorkerLostError as lost:
                self._note(f"died: {lost} with {lost.samples} in hand")
                self._deaths.update(set(lost.samples))
                try:
                    start = recovery.restart(lost)
                except WorkerLostError:
                    return False
            except SupervisorEnded:
                self._note("the supervisor is gone")
                return False
            except RunError as error:
                if "not one target token" not in str(error):
                    raise
                return True

    def _begin(self, start: Start) -> Incarnation:
        self._note(f"incarnation {self.incarnations} behind step {start.step}, {self.given}")
        self._check_letters(start)
        self.world = Incarnation(
            self.incarnations,
            self.given,
            topology_of(self.given),
            start=start,
            disk=self._disk,
            choices=self.choices,
            tick=self._tick,
            poison=self._poison,
            mail=self._mail,
            trace=self.trace,
        )
        return self.world

    def _newest(self) -> Start | None:
        if not self._disk.whole:
            return None
        step = max(self._disk.whole)
        graph = topology_of(self.given).graph
        directory = Path(f"step-{step:08d}")
        return start_from(self._disk.whole[step][0], graph, directory=directory)

    def _end(self, world: Incarnation, start: Start) -> bool:
        done = len(world.coordinator.losses)
        if done == self.given.steps:
            self._check_trained(world)
            return True
        if not self._interrupted:
            breaks(f"the run ends after {done} of {self.given.steps} steps")
        if done > start.step and max(self._disk.whole, default=0) != done:
            whole = sorted(self._disk.whole)
            breaks(f"interrupted after {done} steps, and the checkpoints are {whole}")
        return False

    def _check_trained(self, world: Incarnation) -> None:
        (model,) = set(world.histories("model"))
        letters = {x.sample for x in world.coordinator.dead_letters if x.sample >= 0}
        found = sorted([sample for samples in model for sample in samples] + list(letters))
        if found != list(range(self.given.num_samples)):
            breaks(f"trained are {model}, dead letters {letters}, of {self.given.num_samples}")

    def _check_letters(self, start: Start) -> None:
        for sample in start.left_out - too_long(self.given):
            if self._deaths[sample] < ATTEMPTS:
                breaks(f"sample {sample} is a dead letter after {self._deaths[sample]} deaths")

    # faults

    def _tick(self, world: Incarnation, what: str) -> None:
        self._ticks += 1
        if self._todo and self._todo[-1].tick <= self._ticks:
            self._strike(self._todo.pop(), world)
        if what:
            self._note(what)

    def _strike(self, fault: Fault, world: Incarnation) -> None:
        self.faults += 1
        self._note(f"FAULT: {fault}")
        if fault.what == "end the supervisor":
            raise SupervisorEnded
        if fault.what == "interrupt":
            self._interrupted = True
            world.interrupt()
            return
        worker = world.at_work or world.workers[fault.worker % len(world.workers)]
        world.kill(worker)
        if worker is world.at_work:
            raise Killed

    def _note(self, what: str) -> None:
        if self.trace is not None:
            self.trace(what)


def simulate(seed: int) -> Simulation:
    """The run of this seed, through."""
    simulation = Simulation(Choices(seed))
    simulation.run()
    return simulation
