"""The step's end: sums over replicas, the norm over stages, clipping, and what is refused."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import small_graph
from safetensors.torch import load_file
from torch import Tensor, nn

from flowengine.channel import Message
from flowengine.errors import RunError
from flowengine.graph.dtype import DType
from flowengine.pool import Pool
from flowengine.runtime.coordinator import Coordinator
from flowengine.runtime.segments import make_segments
from flowengine.runtime.site import make_site
from flowengine.runtime.topology import COORDINATOR, Topology
from flowengine.runtime.trainer import Trainer
from flowengine.runtime.weights import build_module


class Trainers:
    """The trainers of all replicas of a graph, their coordinator, and the mail between them."""

    def __init__(self, run_dir: Path, **setting: Any) -> None:
        self.graph = small_graph(**setting)
        self.topology = Topology(self.graph)
        self.mail: deque[tuple[int, Message]] = deque()
        self.coordinator = Coordinator(
            self.topology, post=self._post, observe=lambda _: None, clock=lambda: 0.0
        )
        segments = make_segments(self.topology)
        self.trainers = {
            worker.index: Trainer(
                make_site(
                    self.topology,
                    worker.index,
                    pool=Pool(worker.index, segments, worker.limit),
                    post=self._post,
                    clock=lambda: 0.0,
                    run_dir=run_dir,
                ),
                staleness=self.graph.staleness if worker.stage.name == "encoder" else 0,
            )
            for worker in self.topology.workers
            if worker.stage.name in ("encoder", "model")
        }

    def _post(self, to: int, message: Message) -> None:
        self.mail.append((to, message))

    def of(self, stage: str) -> list[Trainer]:
        """The trainers of a stage's replicas."""
        return [self.trainers[worker.index] for worker in self.topology.replicas_of(stage)]

    def finish(self, step: int) -> None:
        """Ends the step on all trainers, in an order that is nobody's."""
        for trainer in reversed(self.trainers.values()):
            trainer.finish_step(step)
        while self.mail:
            to, message = self.mail.popleft()
            if to == COORDINATOR:
                self.coordinator.handle(message)
            else:
                self.trainers[to].on_notice(message[1], list(message[2:]))


def draw(module: nn.Module, seed: int, *, without: frozenset[int] = frozenset()) -> list[Tensor]:
    """A gradient for every parameter, also set as such, but for the parameters `without`."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for index, parameter in enumerate(module.parameters()):
        gradient = torch.randn(parameter.shape, dtype=parameter.dtype, generator=random)
        parameter.grad = None if index in without else gradient
        found.append(gradient)
    return found


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("replicas", [1, 2, 7])
def test_replicas_stay_equal_to_the_bit(replicas: int, dtype: DType, tmp_path: Path) -> None:
    """After every step all replicas have the same weights, which are those of one optimizer on the
    gradients' sum in the order of the replicas."""
    trainers = Trainers(tmp_path, replicas=replicas, dtype=dtype, clip_norm=None, steps=3)
    stage = trainers.graph.stage("encoder")
    plain = build_module(stage, seed=trainers.graph.seed, dtype=dtype)
    assert stage.optimizer is not None
    optimizer = stage.optimizer.build(plain.parameters())
    for step in range(3):
        parts = [draw(t.module, 10 * step + r) for r, t in enumerate(trainers.of("encoder"))]
        draw(trainers.of("model")[0].module, 5)
        for parameter, *gradients in zip(plain.parameters(), *parts, strict=True):
            total = gradients[0].clone()
            for gradient in gradients[1:]:
                total += gradient
            parameter.grad = total
        for group in optimizer.param_groups:
            group["lr"] = stage.optimizer.lr * stage.optimizer.schedule.factor(step)
        optimizer.step()
        trainers.finish(step)
        for trainer in trainers.of("encoder"):
            assert trainer.version == step + 1
            assert_equal(trainer.module, plain)


def test_a_gradient_may_be_missing_on_some_replicas(tmp_path: Path) -> None:
    """A replica without a gradient for a parameter adds nothing to the sum; without any on all of
    them the parameter is left alone, as torch does."""
    trainers = Trainers(tmp_path, replicas=3, clip_norm=None)
    missing = [frozenset({0, 2}), frozenset({1, 2}), frozenset(range(100))]
    parts = [
        draw(trainer.module, r, without=missing[r])
        for r, trainer in enumerate(trainers.of("encoder"))
    ]
    draw(trainers.of("model")[0].module, 5)
    before = [p.detach().clone() for p in trainers.of("encoder")[0].module.parameters()]
    seen: list[list[Tensor | None]] = []
    optimizer = trainers.of("encoder")[1]._optimizer
    optimizer.register_step_pre_hook(
        lambda *_: seen.append([p.grad for p in trainers.of("encoder")[1].module.parameters()])
    )
    trainers.finish(0)
    (gradients,) = seen
    assert gradients[2] is None
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert gradients[3] is not None
    assert torch.equal(gradients[0], parts[1][0])
    assert torch.equal(gradients[1], parts[0][1])
    assert torch.equal(gradients[3], parts[0][3] + parts[1][3])
    modules = [trainer.module for trainer in trainers.of("encoder")]
    assert torch.equal(list(modules[0].parameters())[2], before[2])
    assert_equal(modules[0], modules[1])
    assert_equal(modules[0], modules[2])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("clip_norm", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("replicas", [1, 2])
def test_clipping_is_torchs_to_the_bit(
    replicas: int, clip_norm: float, dtype: DType, tmp_path: Path
) -> None:
    """Gradients of all stages are clipped as clip_grad_norm_ clips them in one process."""
    trainers = Trainers(tmp_path, replicas=replicas, clip_norm=clip_norm, dtype=dtype)
    stages = [trainers.graph.stage(name) for name in ("encoder", "model")]
    plain = [build_module(s, seed=trainers.graph.seed, dtype=dtype) for s in stages]
    for trainer in trainers.of("encoder")[1:]:
        trainer.module.zero_grad()
    draw(trainers.of("encoder")[0].module, 1)
    draw(trainers.of("model")[0].module, 2)
    for seed, module in enumerate(plain, start=1):
        draw(module, seed)
    parameters = [p for module in plain for p in module.parameters()]
    nn.utils.clip_grad_norm_(parameters, clip_norm)
    for stage, module in zip(stages, plain, strict=True):
        assert stage.optimizer is not None
        optimizer = stage.optimizer.build(module.parameters())
        for group in optimizer.param_groups:
            group["lr"] = stage.optimizer.lr * stage.optimizer.schedule.factor(0)
        optimizer.step()
    trainers.finish(0)
    for trainer in trainers.of("encoder"):
        assert_equal(trainer.module, plain[0])
    assert_equal(trainers.of("model")[0].module, plain[1])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_gradient_that_is_not_finite_is_refused(
    replicas: int, value: float, tmp_path: Path
) -> None:
    """One such number in one gradient of one replica ends the run before any weight of any stage
    has changed."""
    trainers = Trainers(tmp_path, replicas=replicas)
    before = {i: [p.detach().clone() for p in t.module.parameters()] for i, t in _items(trainers)}
    for index, trainer in _items(trainers):
        draw(trainer.module, index)
    gradient = list(trainers.of("encoder")[-1].module.parameters())[3].grad
    assert gradient is not None
    gradient.view(-1)[0] = value
    with pytest.raises(
        RunError,
        match=r"stage 'encoder' \(fakes\.py:\d+\): step 0 has a gradient that is not finite; the "
        "weights are those of the step before. Look at its samples and learning rate",
    ):
        trainers.finish(0)
    for index, trainer in _items(trainers):
        for old, new in zip(before[index], trainer.module.parameters(), strict=True):
            assert torch.equal(old, new)


def _items(trainers: Trainers) -> list[tuple[int, Trainer]]:
    return list(trainers.trainers.items())


def test_a_norm_that_overflows_is_refused(tmp_path: Path) -> None:
    """Gradients that are finite but whose common norm is not would be clipped to nothing; that is
    an error, and no weight has changed."""
    trainers = Trainers(tmp_path)
    before = [p.detach().clone() for p in trainers.of("model")[0].module.parameters()]
    for _, trainer in _items(trainers):
        for gradient in draw(trainer.module, 1):
            gradient.zero_().view(-1)[0] = 1e19
    with pytest.raises(RunError, match="step 0 has gradients whose norm over all stages is inf"):
        trainers.finish(0)
    for old, new in zip(before, trainers.of("model")[0].module.parameters(), strict=True):
        assert torch.equal(old, new)


def test_a_step_without_any_gradient_changes_nothing(tmp_path: Path) -> None:
    """A step whose samples give a stage no gradient leaves its weights, and counts."""
    trainers = Trainers(tmp_path, replicas=2)
    draw(trainers.of("model")[0].module, 5)
    before = [p.detach().clone() for p in trainers.of("encoder")[0].module.parameters()]
    trainers.finish(0)
    for trainer in trainers.of("encoder"):
        assert trainer.version == 1
        for old, new in zip(before, trainer.module.parameters(), strict=True):
            assert torch.equal(old, new)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_old_weights_are_kept_as_long_as_needed(staleness: int, tmp_path: Path) -> None:
    """The weights of the last `staleness` versions can be had as they were; later ones not yet."""
    trainers = Trainers(tmp_path, staleness=staleness, steps=9)
    (trainer,) = trainers.of("encoder")
    history: list[list[Tensor]] = []
    for step in range(8):
        history.append([p.detach().clone() for p in trainer.module.parameters()])
        for version in range(max(0, step - staleness), step + 1):
            module = trainer.module_of(version)
            assert module is not None
            for old, new in zip(history[version], module.parameters(), strict=True):
                assert torch.equal(old, new)
        assert trainer.module_of(step + 1) is None
        used = trainer.module_of(trainer.version_for(step, held_out=False))
        assert used is not None
        draw(used, step)
        draw(trainers.of("model")[0].module, step)
        trainers.finish(step)
    assert len(trainer._kept) == (staleness + 1 if staleness else 0)


def test_stale_gradients_move_to_the_present(tmp_path: Path) -> None:
    """Gradients on a kept copy are applied to the present weights, and none is left on the copy."""
    stale = Trainers(tmp_path, staleness=1, clip_norm=None)
    fresh = Trainers(tmp_path, staleness=0, clip_norm=None)
    for step in range(3):
        for trainers in (stale, fresh):
            (trainer,) = trainers.of("encoder")
            used = trainer.module_of(trainer.version_for(step, held_out=False))
            assert used is not None
            draw(used, step)
            draw(trainers.of("model")[0].module, step)
            trainers.finish(step)
            assert all(p.grad is None for p in used.parameters())
        assert_equal(stale.of("encoder")[0].module, fresh.of("encoder")[0].module)


def test_the_first_replica_writes_the_weights(tmp_path: Path) -> None:
    """One file per stage, by the first replica, with every parameter as it is."""
    trainers = Trainers(tmp_path, replicas=2)
    files = [trainer.end(finishing=False) for trainer in trainers.of("encoder")]
    assert files == ["weights/encoder.safetensors", ""]
    saved = load_file(tmp_path / files[0])
    weights = dict(trainers.of("encoder")[0].module.named_parameters())
    assert saved.keys() == weights.keys()
    assert all(torch.equal(saved[name], weights[name]) for name in saved)


def test_replicas_begin_alike(tmp_path: Path) -> None:
    """All replicas build the same weights, whatever the default generator was at; stages differ."""
    torch.manual_seed(1)
    one = Trainers(tmp_path, replicas=2)
    torch.manual_seed(2)
    other = Trainers(tmp_path, replicas=2)
    modules = [t.module for trainers in (one, other) for t in trainers.of("encoder")]
    for module in modules[1:]:
        assert_equal(module, modules[0])
