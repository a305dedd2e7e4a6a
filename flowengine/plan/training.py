"""An objective's replicas in simulated time, each of one or more pipeline parts.

Parts run one forward, one backward (1F1B; Narayanan et al. 2021, arXiv 2104.04473), and drain at a
step's end.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from flowengine.plan.clock import END, Actor, Job, Wait
from flowengine.plan.deployment import Key

if TYPE_CHECKING:
    from flowengine.plan.flow import Flow


class ObjectivePart(Actor):
    """One pipeline part of one replica of the objective; the whole replica if there is one part."""

    def __init__(self, flow: Flow, replica: int, part: int) -> None:
        stage = flow.deployment.objective
        super().__init__(stage.name, replica, part)
        self._flow, self._stage = flow, stage
        self._is_last = part == stage.costs.parts - 1
        self._guests = flow.deployment.encoders if flow.deployment.colocated and not part else ()
        self.forwards: deque[Key] = deque()
        self.backwards: deque[Key] = deque()
        self._in_flight = 0
        self._step = 0
        self._offered = -1
        self._left = [
            len(range(replica, len(step.packs), stage.parallel.replicas)) for step in flow.steps
        ]

    def next(self) -> Job | Wait:
        if self._step == len(self._flow.steps):
            return END
        if not self._left[self._step]:
            return self._end_step()
        if self.backwards:
            return self._backward(self.backwards.popleft())
        room = self._in_flight < self._stage.costs.parts - self.part
        if self.forwards and room and self.forwards[0][0] == self._step:
            return self._forward(self.forwards.popleft())
        if self._in_flight:
            return Wait("blocked", "the other pipeline parts")
        return Wait("starved", "packs" if not self.part else "the pipeline's filling")

    def _forward(self, key: Key) -> Job:
        forward, backward = self._seconds(key)
        if self._is_last:
            return Job("train", *key, forward + backward, lambda: self._give_back(key))
        return Job("forward", *key, forward, lambda: self._pass_on(key))

    def _backward(self, key: Key) -> Job:
        return Job("backward", *key, self._seconds(key)[1], lambda: self._give_back(key))

    def _seconds(self, key: Key) -> tuple[float, float]:
        pack, own = self._flow.pack(key), self._stage.costs
        forward, backward = own.forward.seconds(pack.whole), own.backward.seconds(pack.whole)
        for guest in self._guests:
            load = pack.loads[guest.costs.modality]
            forward += guest.costs.forward.seconds(load)
            backward += guest.costs.backward.seconds(load)
        return forward, backward

    def _pass_on(self, key: Key) -> None:
        self._in_flight += 1
        other = self._flow.objective[self.replica][self.part + 1]
        other.forwards.append(key)
        self._flow.clock.wake(other)

    def _give_back(self, key: Key) -> None:
        self._in_flight -= not self._is_last
        self._left[key[0]] -= 1
        if self.part:
            other = self._flow.objective[self.replica][self.part - 1]
            other.backwards.append(key)
            self._flow.clock.wake(other)
        else:
            self._flow.consumed(key)

    def _end_step(self) -> Job | Wait:
        step, ledger = self._step, self._flow.ledger
        if self._offered < step:
            self._offered = step
            ledger.offer(self, step)
        if not ledger.may_step(self, step):
            return Wait("blocked", "the other stages' gradients")
        update_s = self._stage.costs.update_s + sum(g.costs.update_s for g in self._guests)
        return Job("optimizer", step, -1, update_s, lambda: self._stepped(step))

    def _stepped(self, step: int) -> None:
        self._step += 1
        self._flow.ledger.stepped(step)
