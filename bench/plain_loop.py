"""The loop that a graph replaces: one process, one thread of control, plain PyTorch.

It defines what "the same mathematics" means. A step takes the next samples of the source and plans
their packs; for every pack in order the encoder and the objective run forward and backward; the
loss is a sum divided by the step's number of targets; then one clip by global norm over both
operators, one optimizer step for each.

    rig = Rig(encoder, objective, packer, optimizers=(AdamW(lr=1e-3), AdamW(lr=1e-3)))
    for step in range(steps):
        figures = rig.train_step(source, step=step, samples=64)
    print(rig.accuracy(held_out, samples=512))

Run it to train the digit cards: python bench/plain_loop.py [steps] [seed]
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flowengine import Graph
from flowengine.api import (
    Answer,
    Encoder,
    Joined,
    Objective,
    Optimizer,
    Pack,
    Packer,
    Sample,
    Source,
    join_samples,
)
from flowengine.graphs.digit_cards import build
from flowengine.operators.sources import DigitCards


@dataclass(frozen=True)
class Figures:
    """What one step gives. loss: mean over the targets. Times are CPU seconds of this thread."""

    loss: float
    norm: float
    tokens: int
    targets: int
    packs: int
    encoder_s: float
    objective_s: float


class Rig:
    """The two operators' modules and optimizers, and the loop over them.

    The encoder's module is built first, then the objective's, after torch.manual_seed(seed), unless
    `modules` are given.
    """

    def __init__(
        self,
        encoder: Encoder[Any, Any],
        objective: Objective[Any],
        packer: Packer,
        *,
        optimizers: tuple[Optimizer, Optimizer],
        clip_norm: float | None = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        modules: tuple[nn.Module, nn.Module] | None = None,
    ) -> None:
        torch.manual_seed(seed)
        self.encoder, self.objective, self.packer = encoder, objective, packer
        self.modules = modules or (encoder.build(), objective.build())
        for module in self.modules:
            module.to(dtype)
        self.described = optimizers
        self.optimizers = [
            described.build(module.parameters())
            for described, module in zip(optimizers, self.modules, strict=True)
        ]
        self.clip_norm = clip_norm

    def train_step(self, source: Source[Sample], *, step: int, samples: int) -> Figures:
        """Trains on the samples [step * samples, (step + 1) * samples)."""
        indices = range(step * samples, (step + 1) * samples)
        lengths = [source.lengths(index) for index in indices]
        plan = self.packer.plan(lengths)
        targets = sum(length.targets for length in lengths)
        total, encoder_s, objective_s = 0.0, 0.0, 0.0
        for members in plan:
            chosen = tuple(indices[member] for member in members)
            batch = [source.read(index) for index in chosen]
            start = time.thread_time()
            features = self.encode(batch)
            encoder_s += time.thread_time() - start
            pack, leaves = pack_samples(chosen, batch, features, modality=self.encoder.modality)
            start = time.thread_time()
            loss = self.objective.loss(self.modules[1], pack) / targets
            torch.autograd.backward(loss)
            total += float(loss.detach())
            objective_s += time.thread_time() - start
            start = time.thread_time()
            if features.requires_grad:
                torch.autograd.backward(features, leaves.grad)
            encoder_s += time.thread_time() - start
        norm = self.update(step)
        return Figures(
            loss=total,
            norm=norm,
            tokens=sum(length.tokens for length in lengths),
            targets=targets,
            packs=len(plan),
            encoder_s=encoder_s,
            objective_s=objective_s,
        )

    def encode(self, batch: Sequence[Sample]) -> Tensor:
        """The features of all samples that have the encoder's modality, in order: [N, ...]."""
        media = [item for sample in batch for item in sample.items(self.encoder.modality)]
        if not media:
            weight = next(self.modules[0].parameters())
            return weight.new_zeros((0, *self.encoder.feature_shape()))
        return self.encoder.forward(self.modules[0], self.encoder.batch(media))

    def update(self, step: int) -> float:
        """Clips by the global norm, steps both optimizers; the norm before clipping."""
        parameters = [p for module in self.modules for p in module.parameters()]
        bound = self.clip_norm if self.clip_norm is not None else float("inf")
        norm = nn.utils.clip_grad_norm_(parameters, bound, foreach=True)
        for described, optimizer in zip(self.described, self.optimizers, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = described.lr * described.schedule.factor(step)
            optimizer.step()
            optimizer.zero_grad()
        return float(norm)

    @torch.no_grad()
    def answers(self, source: Source[Sample], *, samples: int) -> list[Answer]:
        """The answers to the source's first `samples` samples, pack by pack."""
        plan = self.packer.plan([source.lengths(index) for index in range(samples)])
        found: list[Answer] = []
        for members in plan:
            batch = [source.read(index) for index in members]
            features = self.encode(batch)
            pack, _ = pack_samples(tuple(members), batch, features, modality=self.encoder.modality)
            found += self.objective.answers(self.modules[1], pack)
        return found

    def accuracy(self, source: Source[Sample], *, samples: int) -> dict[str, float]:
        """The share of right answers by kind, and overall."""
        asked: Counter[str] = Counter()
        right: Counter[str] = Counter()
        for answer in self.answers(source, samples=samples):
            for group in ("overall", str(answer.note["kind"])):
                asked[group] += 1
                right[group] += bool((answer.predicted == answer.expected).all())
        return {group: right[group] / asked[group] for group in sorted(asked)}


def pack_samples(
    ids: tuple[int, ...], batch: Sequence[Sample], features: Tensor, *, modality: str
) -> tuple[Pack, Tensor]:
    """The pack, and the leaf that its features are: cut from the encoder's graph, as between
    processes. Its gradient is the encoder's."""
    leaf = features.detach().requires_grad_(features.requires_grad)
    joined = join_samples(ids, tuple(Joined(sample, {}) for sample in batch))
    present = any(modality in sample.media for sample in batch)
    pack = Pack(
        ids=joined.ids,
        tokens=joined.tokens,
        labels=joined.labels,
        positions=joined.positions,
        lengths=joined.lengths,
        features={modality: leaf} if present else {},
        notes=joined.notes,
    )
    return pack, leaf


def train(
    rig: Rig,
    source: Source[Sample],
    *,
    steps: int,
    samples: int,
    each: Callable[[int, Figures], None] = lambda _step, _figures: None,
) -> list[Figures]:
    """All steps; `each` is called after every one."""
    history = []
    for step in range(steps):
        history.append(rig.train_step(source, step=step, samples=samples))
        each(step, history[-1])
    return history


def make_rig(graph: Graph) -> tuple[Rig, Source[Sample], int]:
    """The plain loop over a graph's operators, its source, and its samples per step."""
    kinds: tuple[type, ...] = (Source, Encoder, Packer, Objective)
    found: list[Any] = [next(s for s in graph.stages if isinstance(s.what, k)) for k in kinds]
    source, encoder, packer, model = found
    rig = Rig(
        encoder.what,
        model.what,
        packer.what,
        optimizers=(encoder.optimizer, model.optimizer),
        clip_norm=graph.clip_norm,
        seed=graph.seed,
    )
    return rig, source.what, graph.step.samples


def main(steps: int = 300, seed: int = 0) -> None:
    rig, source, samples = make_rig(build(steps=steps, seed=seed))
    held_out = DigitCards(seed=seed, split="held-out", questions=1)
    print(f"{sum(p.numel() for module in rig.modules for p in module.parameters()):,} weights")

    def each(step: int, figures: Figures) -> None:
        if step % 25 == 24 or step == steps - 1:
            shares = rig.accuracy(held_out, samples=512)
            print(
                f"step {step + 1:4d} loss {figures.loss:.3f} norm {figures.norm:.2f} "
                f"encoder {1e3 * figures.encoder_s:.0f} ms objective "
                f"{1e3 * figures.objective_s:.0f} ms packs {figures.packs}  "
                + " ".join(f"{name} {share:.3f}" for name, share in shares.items()),
                flush=True,
            )

    train(rig, source, steps=steps, samples=samples, each=each)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*(int(word) for word in sys.argv[1:]))
