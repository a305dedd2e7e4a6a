"""The coordinator: where the stages' notices meet. It keeps the ledger of steps, and no data.

Rules.
- Replicas of a stage add up their gradients only after all of them have offered theirs.
- With clipping, every stage steps after the norms of all trained stages are in.
- A step is reported once its loss, plan, norms, lags and learning rates are known, in step order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from flowengine.api import Encoder, Objective, Packer, Source
from flowengine.channel import Kind, Message, Post
from flowengine.errors import RunError
from flowengine.runtime.cost_watch import CostWatch
from flowengine.runtime.events import (
    CatalogueRows,
    Effort,
    LeftOut,
    Observer,
    PackRows,
    Reported,
    SpanRows,
    StepDone,
)
from flowengine.runtime.plans import COEFFICIENTS, Plans
from flowengine.runtime.site import packs_ready
from flowengine.runtime.start import BEGINNING, DeadLetter, Start
from flowengine.runtime.topology import Topology


@dataclass
class _Step:
    """What is known of a step so far."""

    plan: list[Any] | None = None
    losses: dict[int, list[tuple[int, float, int]]] = field(default_factory=dict)
    offers: dict[str, dict[int, list[bool]]] = field(default_factory=lambda: defaultdict(dict))
    norms: dict[str, list[float]] = field(default_factory=dict)
    norm: float | None = None
    lags: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    rates: dict[str, float] = field(default_factory=dict)
    packed: tuple[int, float] | None = None
    deferred: int = 0
    cost: dict[str, float] | None = None


class Coordinator:
    """Answers notices, and tells the observer what they add up to."""

    def __init__(
        self,
        topology: Topology,
        *,
        post: Post,
        observe: Observer,
        clock: Callable[[], float],
        start: Start = BEGINNING,
    ) -> None:
        self._topology = topology
        self._graph = topology.graph
        self._post = post
        self._observe = observe
        self._clock = clock
        self._steps: dict[int, _Step] = defaultdict(_Step)
        self._next = start.step
        self.losses = list(start.losses)
        self.dead_letters = list(start.dead_letters)
        stages = self._graph.stages
        self._trained = [stage.name for stage in stages if stage.trains]
        wide = any(s.trains and self._graph.dtype_of(s) == "float64" for s in stages)
        self._norm_dtype = torch.float64 if wide else torch.float32
        self._encoders = [s for s in stages if isinstance(s.what, Encoder) and s.trains]
        self._objectives = [s for s in stages if isinstance(s.what, Objective)]
        self.done: dict[int, str] = {}
        self.plans = Plans(start.plans)
        self._costs = CostWatch(observe, clock)
        self._learners = [
            worker.index
            for worker in topology.workers
            if isinstance(worker.stage.what, Source)
            and any(isinstance(s.what, Packer) and s.what.learns_cost() for s in stages)
        ]

    @property
    def is_done(self) -> bool:
        """Whether every stage replica has dealt with everything."""
        return len(self.done) == len(self._topology.workers)

    @property
    def weights(self) -> dict[str, str]:
        """The weights file of every stage that has one."""
        workers = self._topology.workers
        return {workers[i].stage.name: file for i, file in sorted(self.done.items()) if file}

    def handle(self, message: Message) -> None:
        """Takes in one notice."""
        _, subject, *fields = message
        getattr(self, f"_on_{subject}")(*fields)

    def _on_plan(self, step: int, *fields: Any) -> None:
        self._steps[step].plan = list(fields)
        self._report()

    def _on_packed(self, step: int, packs: int, fill: float) -> None:
        self._steps[step].packed = (packs, fill)
        self._report()

    def _on_lengths(self, number: int, samples: list[Any]) -> None:
        for worker in self._topology.workers:
            if packs_ready(worker.stage):
                self._post(worker.index, (Kind.NOTICE, "lengths", number, samples))

    def _on_basis(self, step: int, cost: list[float] | None, deferred: list[int]) -> None:
        state = self._steps[step]
        state.deferred = len(deferred)
        state.cost = None if cost is None else dict(zip(COEFFICIENTS, cost, strict=True))
        self.plans.add(step, cost, deferred)

    def _on_times_of(self, step: int, packs: list[tuple[list[int], float]]) -> None:
        if self._costs.add(step, packs):
            for worker in self._learners:
                self._post(worker, (Kind.NOTICE, "cost", step, *self._costs.coefficients))

    def _on_losses(self, step: int, replica: int, losses: list[Any]) -> None:
        self._steps[step].losses[replica] = [(pack, loss, count) for pack, loss, count in losses]
        self._report()

    def _on_encoded(self, step: int, stage: str, lag: int) -> None:
        self._steps[step].lags[stage].append(lag)
        self._report()

    def _on_effort(self, step: int, worker: int, modality: str, items: int, flops: int) -> None:
        spec = self._topology.workers[worker]
        self._observe(Effort(spec.stage.name, spec.replica, step, modality, items, flops))

    def _on_stepped(self, step: int, stage: str, rate: float) -> None:
        self._steps[step].rates[stage] = rate
        self._report()

    def _on_reduce(self, step: int, stage: str, replica: int, present: list[bool]) -> None:
        offers = self._steps[step].offers[stage]
        offers[replica] = present
        workers = self._topology.replicas_of(stage)
        if len(offers) == len(workers):
            in_order = [offers[worker.replica] for worker in workers]
            runs = [[present, len(list(same))] for present, same in groupby(in_order)]
            for worker in workers:
                self._post(worker.index, (Kind.NOTICE, "reduce", step, runs))

    def _on_norms(self, step: int, stage: str, norms: list[float]) -> None:
        state = self._steps[step]
        state.norms[stage] = norms
        if len(state.norms) < len(self._trained):
            return
        every = [norm for name in self._trained for norm in state.norms[name]]
        state.norm = float(torch.linalg.vector_norm(torch.tensor(every, dtype=self._norm_dtype)))
        for name in self._trained:
            for worker in self._topology.replicas_of(name):
                self._post(worker.index, (Kind.NOTICE, "commit", step, state.norm))
        self._report()

    def _on_left_out(self, sample: int, stage: str, reason: str) -> None:
        self.dead_letters.append(DeadLetter(sample, stage, reason))
        self._observe(LeftOut(sample, self._clock(), stage, reason))

    def _on_report(self, worker: int, step: int, name: str, value: Any) -> None:
        stage = self._topology.workers[worker].stage.name
        self._observe(Reported(stage, step, self._clock(), name, value))

    def _on_catalogue(self, columns: dict[str, list[Any]]) -> None:
        self._observe(CatalogueRows(columns))

    def _on_spans(self, worker: int, columns: dict[str, list[Any]]) -> None:
        spec = self._topology.workers[worker]
        self._observe(SpanRows(spec.stage.name, spec.replica, columns))

    def _on_packs(self, columns: dict[str, list[Any]]) -> None:
        self._observe(PackRows(columns))

    def _on_done(self, worker: int, weights: str) -> None:
        self.done[worker] = weights

    def _report(self) -> None:
        while self._objectives and self._is_known(self._steps[self._next]):
            done = self._step_done(self._next, self._steps.pop(self._next))
            self.losses.append(done.loss)
            self._observe(done)
            self._next += 1

    def _is_known(self, state: _Step) -> bool:
        encoded = all(len(state.lags[s.name]) == s.ways for s in self._encoders)
        return (
            state.plan is not None
            and (state.plan[3] is not None or state.packed is not None)
            and len(state.losses) == self._objectives[0].ways
            and len(state.rates) == len(self._trained)
            and encoded
        )

    def _step_done(self, step: int, state: _Step) -> StepDone:
        assert state.plan is not None
        samples, tokens, targets, *packed = state.plan
        packs, fill = state.packed if state.packed is not None else packed
        in_order = sorted(entry for losses in state.losses.values() for entry in losses)
        assert len(in_order) == packs, f"step {step}: {len(in_order)} losses for {packs} packs"
        found = sum(count for _, _, count in in_order)
        if found != targets:
            raise RunError(
                f"step {step}: the packs hold {found} target tokens, the source's lengths said "
                f"{targets}; a stage between source and packer must not change labels"
            )
        return StepDone(
            step=step,
            wall_s=self._clock(),
            loss=math.fsum(loss for _, loss, _ in in_order) / targets,
            samples=samples,
            tokens=tokens,
            targets=targets,
            packs=packs,
            fill=fill,
            gradient_norm=state.norm,
            staleness={name: max(lags) for name, lags in sorted(state.lags.items())},
            lr=dict(sorted(state.rates.items())),
            deferred=state.deferred,
            cost=state.cost,
        )
