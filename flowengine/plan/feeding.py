"""The source and the packer in simulated time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from flowengine.plan.clock import END, Actor, Job, Wait
from flowengine.plan.deployment import Key

if TYPE_CHECKING:
    from flowengine.plan.flow import Flow


class SourceStage(Actor):
    """Plans steps and reads packs, as far ahead as the credits allow."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow.deployment.source, 0)
        self._flow = flow
        self._at: Key | None = (0, 0)
        self._planned = -1
        self.rows = 0
        """Rows read and not yet joined."""

    def next(self) -> Job | Wait:
        if self._at is None:
            return END
        step, index = key = self._at
        pack, given = self._flow.pack(key), self._flow.deployment
        if self._planned < step:
            return Job("plan", step, -1, given.plan_s, lambda: self._plan(step))
        if self.rows and self.rows + pack.samples > given.credits:
            return Wait("blocked", f"credits of '{given.packer}'")
        return Job("read", step, index, given.read.seconds(pack.whole), lambda: self._send(key))

    def _plan(self, step: int) -> None:
        self._planned = step

    def _send(self, key: Key) -> None:
        flow = self._flow
        self._at = flow.ahead(key)
        self.rows += flow.pack(key).samples
        for stage in flow.encoders:
            for encoder in stage:
                if encoder.owns(key):
                    encoder.arrived.append(key)
                    flow.clock.wake(encoder)
        flow.packer.arrive(key)


class PackerStage(Actor):
    """Joins packs in order, once all encoders have made their features."""

    def __init__(self, flow: Flow, *, num_encoders: int) -> None:
        super().__init__(flow.deployment.packer, 0)
        self._flow = flow
        self._wanted = num_encoders + 1
        self._there: dict[Key, int] = defaultdict(int)
        self._at: Key | None = (0, 0)
        self._used = [0] * len(flow.steps)
        self._encoded = [0] * len(flow.steps)

    def arrive(self, key: Key) -> None:
        """The samples of a pack, or one modality's features, are there."""
        self._there[key] += 1
        if self._there[key] == self._wanted:
            self._encoded[key[0]] += 1
        self._flow.clock.wake(self)

    def consumed(self, key: Key) -> None:
        self._used[key[0]] += 1

    def step_is_used(self, step: int) -> bool:
        """Whether the objective is through with all packs of a step."""
        return self._used[step] == len(self._flow.steps[step].packs)

    def next(self) -> Job | Wait:
        if self._at is None:
            return END
        key, given = self._at, self._flow.deployment
        if self._there[key] < self._wanted:
            return Wait("starved", "features")
        whole = len(self._flow.steps[key[0]].packs)
        if given.handover == "step" and self._encoded[key[0]] < whole:
            return Wait("starved", "the step's last features")
        seconds = given.join.seconds(self._flow.pack(key).whole)
        return Job("join", *key, seconds, lambda: self._pass_on(key))

    def _pass_on(self, key: Key) -> None:
        flow = self._flow
        self._at = flow.ahead(key)
        flow.source.rows -= flow.pack(key).samples
        flow.clock.wake(flow.source)
        first = flow.objective[key[1] % len(flow.objective)][0]
        first.forwards.append(key)
        flow.clock.wake(first)
