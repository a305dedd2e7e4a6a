"""How a trainable operator's weights are updated: an optimizer and a learning-rate schedule."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Schedule(ABC):
    """The factor on the learning rate as a function of the optimizer step, counted from 0."""

    @abstractmethod
    def factor(self, step: int) -> float:
        """A number, most often in [0, 1]."""


@dataclass(frozen=True)
class Constant(Schedule):
    """Linear warm-up over `warmup` steps, then 1."""

    warmup: int = 0

    def factor(self, step: int) -> float:
        return min(1.0, (step + 1) / (self.warmup + 1))


@dataclass(frozen=True)
class Cosine(Schedule):
    """Linear warm-up over `warmup` steps, then a half cosine down to `floor` at step `steps`.

    Loshchilov and Hutter, SGDR (arXiv 1608.03983), equation 5, with one period.
    """

    steps: int
    warmup: int = 0
    floor: float = 0.0

    def factor(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """Describes an optimizer; `lr` is multiplied by the schedule's factor at every step."""

    lr: float
    schedule: Schedule = Constant()

    @abstractmethod
    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The torch optimizer over these parameters."""


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Decoupled weight decay (arXiv 1711.05101); decay is left out for parameters with fewer than
    two dimensions (norms, biases)."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        parameters = list(parameters)
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            foreach=True,
        )


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Plain stochastic gradient descent with momentum."""

    momentum: float = 0.0

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, foreach=True)
