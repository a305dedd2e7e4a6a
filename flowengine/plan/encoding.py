"""An encoder's replicas in simulated time, by the rules of flowengine.runtime.encoder_stage."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from flowengine.errors import PlanError
from flowengine.plan.clock import END, Actor, Job, Wait
from flowengine.plan.deployment import Deployed, Key

if TYPE_CHECKING:
    from flowengine.plan.flow import Flow

AHEAD = 3
"""As flowengine.runtime.encoder_stage.AHEAD."""


class EncoderReplica(Actor):
    """One replica of an encoder."""

    def __init__(self, flow: Flow, stage: Deployed, replica: int) -> None:
        super().__init__(stage.name, replica)
        self._flow, self._stage = flow, stage
        self.learns = stage.costs.learns
        self.arrived: deque[Key] = deque()
        self._flights: deque[Key] = deque()
        self._returned: set[Key] = set()
        self._unsent: Key | None = None
        self._used_bytes = 0.0
        self._version = 0
        self._offered = -1
        self._left = [self._own_packs(step) for step in range(len(flow.steps))]

    def owns(self, key: Key) -> bool:
        return key[1] % self._stage.parallel.replicas == self.replica

    def _own_packs(self, step: int) -> int:
        return sum(self.owns((step, index)) for index in range(len(self._flow.steps[step].packs)))

    def take_return(self, key: Key) -> None:
        """The objective is through with the features: a gradient, or room."""
        if key not in self._flights:
            return
        if self.learns:
            self._returned.add(key)
        else:
            self._land(key)

    def next(self) -> Job | Wait:
        if self._unsent is not None and not self._send():
            return self._make_room() or Wait("blocked", "room in the pool")
        if self._can_take_back() and len(self._flights) - len(self._returned) >= AHEAD:
            return self._backward()
        if self.arrived and (wait := self._must_wait(self.arrived[0])) is None:
            return self._forward()
        job = self._make_room()
        if job is not None:
            return job
        if not self.arrived:
            return END if self._version == len(self._flow.steps) else Wait("starved", "samples")
        assert wait is not None
        return wait

    def _must_wait(self, key: Key) -> Wait | None:
        given, step = self._flow.deployment, key[0]
        wanted = max(0, step - given.staleness)
        if self.learns and self._version < wanted:
            return self._why_old()
        if given.barrier and step and not self._flow.ledger.is_over(step - 1):
            return Wait("blocked", "the step's end")
        if given.handover == "step" and step and not self._flow.packer.step_is_used(step - 1):
            return Wait("blocked", "the hand-over of the last step")
        window = 1 if given.handover == "pack" else self._stage.window
        if window is not None and len(self._flights) >= window:
            return Wait("blocked", f"gradients within window={window}")
        return None

    def _why_old(self) -> Wait:
        if self._flights:
            return Wait("blocked", "returning gradients")
        return Wait("blocked", "the other stages' gradients")

    def _forward(self) -> Job:
        key = self.arrived.popleft()
        load = self._flow.pack(key).loads[self._stage.costs.modality]
        seconds = self._stage.costs.forward.seconds(load)
        return Job("forward", *key, seconds, lambda: self._encoded(key))

    def _encoded(self, key: Key) -> None:
        self._unsent = key
        self._send()

    def _send(self) -> bool:
        key = self._unsent
        assert key is not None
        size = self._size(key)
        if size > self._stage.share_bytes:
            raise PlanError(
                f"simulate: pack {key[1]} of step {key[0]} has {size:.0f} bytes of features, a "
                f"replica of '{self.stage}' may have {self._stage.share_bytes:.0f} in the pool; "
                "raise capacity="
            )
        if self._used_bytes + size > self._stage.share_bytes:
            return False
        self._used_bytes += size
        self._unsent = None
        if self._flow.pack(key).loads[self._stage.costs.modality].samples:
            self._flights.append(key)
        else:
            self._left[key[0]] -= 1
        self._flow.packer.arrive(key)
        return True

    def _size(self, key: Key) -> float:
        return self._flow.pack(key).loads[self._stage.costs.modality].rows * self._stage.row_bytes

    def _can_take_back(self) -> bool:
        first = self._flights[0] if self._flights else None
        return first in self._returned and first is not None and first[0] == self._version

    def _backward(self) -> Job:
        key = self._flights[0]
        load = self._flow.pack(key).loads[self._stage.costs.modality]
        seconds = self._stage.costs.backward.seconds(load)
        return Job("backward", *key, seconds, lambda: self._land(key))

    def _land(self, key: Key) -> None:
        self._flights.remove(key)
        self._returned.discard(key)
        self._used_bytes -= self._size(key)
        self._left[key[0]] -= 1

    def _make_room(self) -> Job | None:
        if self._can_take_back():
            return self._backward()
        step = self._version
        if not self.learns or step == len(self._flow.steps) or self._left[step]:
            return None
        if self._offered < step:
            self._offered = step
            self._flow.ledger.offer(self, step)
        if not self._flow.ledger.may_step(self, step):
            return None
        return Job("optimizer", step, -1, self._stage.costs.update_s, lambda: self._stepped(step))

    def _stepped(self, step: int) -> None:
        self._version += 1
        self._flow.ledger.stepped(step)
