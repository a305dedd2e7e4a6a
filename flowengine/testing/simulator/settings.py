"""What simulated graphs are like: small, and of every kind."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

NUM_SETTINGS = 192


@dataclass(frozen=True)
class Setting:
    """What a graph is like. packs, capacity: the most samples of a pack, and the packs that a
    share holds. every: steps between checkpoints, None without any."""

    steps: int = 1
    samples: int = 1
    modalities: int = 1
    encoders: int = 1
    objectives: int = 1
    frozen: int = 0
    staleness: int = 0
    packs: int = 1
    capacity: int = 1
    items: int = 1
    window: int | None = None
    clips: bool = False
    function: int = 0
    keeps: bool = False
    evaluates: bool = False
    every: int | None = None
    keep_last: int = 1
    ends: bool = False

    @property
    def num_samples(self) -> int:
        """In all steps together; with `ends`, the source's last step is smaller."""
        return self.steps * self.samples - (self.ends and self.steps > 1 and self.samples > 1)


@cache
def setting(index: int) -> Setting:
    """One of NUM_SETTINGS; 0 is the simplest."""
    draw = random.Random(index)
    if index == 0:
        return Setting(steps=2, samples=2, every=1)
    return Setting(
        steps=draw.choice((1, 2, 2, 2, 3)),
        samples=draw.choice((1, 2, 2, 3)),
        modalities=draw.choice((1, 1, 1, 2)),
        encoders=draw.choice((1, 1, 2)),
        objectives=draw.choice((1, 1, 2)),
        frozen=draw.choice((0, 0, 0, 1)),
        staleness=draw.choice((0, 0, 1, 2)),
        packs=draw.choice((1, 2, 3)),
        capacity=draw.choice((1, 1, 2, 4)),
        items=draw.choice((1, 1, 2, 8)),
        window=draw.choice((None, None, 1, 2)),
        clips=draw.choice((False, True)),
        function=draw.choice((0, 0, 0, 0, 1, 2)),
        keeps=draw.choice((False, True)),
        evaluates=draw.choice((False, False, False, True)),
        every=draw.choice((None, 0, 1, 1, 1, 2)),
        keep_last=draw.choice((1, 2)),
        ends=draw.choice((False, True)),
    )
