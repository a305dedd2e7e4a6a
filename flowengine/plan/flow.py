"""A graph's protocol in simulated time: what every replica does next, and what it waits for.

The rules are those of the runtime's stages (flowengine.runtime): packs in the plan's order, pack k
to replica k mod R, AHEAD packs in flight before gradients go first, features of step s with version
max(0, s - staleness), no pack that the pool has no room for. An objective with pipeline parts runs
one forward, one backward (1F1B; Narayanan et al. 2021, arXiv 2104.04473), and drains at a step's
end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain

from flowengine.errors import PlanError
from flowengine.plan.clock import Actor, Clock, Wait
from flowengine.plan.deployment import Deployment, Key, PackWork, StepWork
from flowengine.plan.encoding import EncoderReplica
from flowengine.plan.feeding import PackerStage, SourceStage
from flowengine.plan.training import ObjectivePart


class Flow:
    """All replicas of a deployment on these steps. `run` gives the clock, with what happened.

    ends: when the optimizer steps of each training step were done, in seconds.
    """

    def __init__(self, deployment: Deployment, steps: Sequence[StepWork]) -> None:
        self.deployment = deployment
        self.steps = steps
        self.ends: list[float] = []
        encoders = () if deployment.colocated else deployment.encoders
        self.source = SourceStage(self)
        self.packer = PackerStage(self, num_encoders=len(encoders))
        self.encoders = [
            [EncoderReplica(self, stage, replica) for replica in range(stage.parallel.replicas)]
            for stage in encoders
        ]
        self.objective = [
            [ObjectivePart(self, replica, part) for part in range(deployment.objective.costs.parts)]
            for replica in range(deployment.objective.parallel.replicas)
        ]
        parts = [part for replica in self.objective for part in replica]
        self.ledger = Ledger(self)
        every = [replica for stage in self.encoders for replica in stage]
        self.actors: list[Actor] = [self.source, *every, self.packer, *parts]
        self.clock = Clock(self.actors, cores=deployment.cores, slowdown=deployment.slowdown)

    def run(self) -> Clock:
        """Simulates all steps; PlanError, with who waits for what, where they do not end."""
        self.clock.run()
        if len(self.ends) < len(self.steps):
            waits = {
                f"{a.stage}: {w.cause}" for a in self.actors if isinstance(w := a.next(), Wait)
            }
            raise PlanError(
                f"simulate: step {len(self.ends)} never ends; {'; '.join(sorted(waits - {''}))}"
            )
        return self.clock

    def pack(self, key: Key) -> PackWork:
        return self.steps[key[0]].packs[key[1]]

    def ahead(self, key: Key) -> Key | None:
        """The pack that follows; None after the last."""
        step, index = key
        if index + 1 < len(self.steps[step].packs):
            return step, index + 1
        return (step + 1, 0) if step + 1 < len(self.steps) else None

    def consumed(self, key: Key) -> None:
        """The objective is through with a pack: its features go back to their encoders."""
        self.packer.consumed(key)
        for stage in self.encoders:
            for encoder in stage:
                if encoder.owns(key):
                    encoder.take_return(key)
                if self.deployment.handover != "pool" or encoder.owns(key):
                    self.clock.wake(encoder)


class Ledger:
    """Who has all gradients of a step, and who has stepped."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        encoders = [e for stage in flow.encoders for e in stage if e.learns]
        parts = [part for replica in flow.objective for part in replica]
        self._trained: dict[str, list[Actor]] = defaultdict(list)
        for actor in (*encoders, *parts):
            self._trained[actor.stage].append(actor)
        self._count = len(encoders) + len(parts)
        self._ready: Counter[tuple[int, str]] = Counter()
        self._stepped: Counter[int] = Counter()

    def offer(self, actor: Actor, step: int) -> None:
        """This replica or part has all gradients of the step."""
        self._ready[step, actor.stage] += 1
        if self.may_step(actor, step):
            for other in chain.from_iterable(self._trained.values()):
                self._flow.clock.wake(other)

    def may_step(self, actor: Actor, step: int) -> bool:
        """Whether everybody is ready whom this one has to wait for."""
        stages = self._trained if self._flow.deployment.together else (actor.stage,)
        return all(self._ready[step, name] == len(self._trained[name]) for name in stages)

    def stepped(self, step: int) -> None:
        """One more has done its optimizer step."""
        flow = self._flow
        self._stepped[step] += 1
        if self._stepped[step] == self._count:
            flow.ends.append(flow.clock.now)
            for actor in flow.actors:
                flow.clock.wake(actor)

    def is_over(self, step: int) -> bool:
        """Whether all optimizer steps of this training step are done."""
        return len(self._flow.ends) > step
