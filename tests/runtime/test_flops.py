"""Operations are counted as torch counts them, and per stage as the graph computes them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fakes import small_graph
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from flowengine.runtime import Runtime, execute
from flowengine.runtime.events import Effort, Event
from flowengine.runtime.flops import FlopCounter


class Net(nn.Module):
    """Layers of every counted kind but attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.sound = nn.Conv1d(8, 8, 3, padding=1)
        self.wide, self.narrow = nn.Linear(8, 32), nn.Linear(32, 8)
        self.mix = nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.sound(self.patch(x).flatten(2)).transpose(1, 2)
        x = self.narrow(F.gelu(self.wide(x)))
        x = torch.baddbmm(x, x @ self.mix, torch.bmm(self.mix, self.mix))
        return x.sum()


@pytest.mark.parametrize("frozen", [(), ("wide",), ("patch", "sound"), ("narrow.bias",)])
def test_products_are_counted_as_torch_does(frozen: tuple[str, ...]) -> None:
    """Forward and backward, whatever of the weights is frozen."""
    net = Net()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen) if frozen else True)
    x = torch.randn(4, 3, 16, 16)
    with FlopCounterMode(display=False) as torchs:
        loss = net(x)
        forward = torchs.get_total_flops()
        loss.backward()
    with FlopCounter(learns=True) as learning:
        net(x)
    with FlopCounter(learns=False) as reading, torch.no_grad():
        net(x)
    assert reading.flops == forward > 0
    assert learning.flops == torchs.get_total_flops() > forward


def test_attention_counts_the_pairs_that_see_each_other() -> None:
    """Two products forward, four backward; causal ones have n (n + 1) / 2 pairs."""
    q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))
    pairs = {True: 15, False: 25}
    for causal, number in pairs.items():
        with FlopCounter(learns=True) as counter:
            F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        assert counter.flops == 3 * 2 * (2 * number * 4) * 2
        with FlopCounter(learns=False) as counter:
            F.scaled_dot_product_attention(q, k, v, None, 0.0, causal)
        assert counter.flops == 2 * (2 * number * 4) * 2


def efforts_of(tmp_path: Path, *, runtime: Runtime = "inline", **settings: Any) -> list[Effort]:
    graph = small_graph(steps=2, **settings)
    graph.counts_flops = True
    found: list[Effort] = []

    def observe(event: Event) -> None:
        if isinstance(event, Effort):
            found.append(event)

    execute(graph, runtime=runtime, run_dir=tmp_path, observe=observe)
    return found


def flops_of(efforts: list[Effort]) -> dict[tuple[str, int], int]:
    total: dict[tuple[str, int], int] = defaultdict(int)
    for effort in efforts:
        total[effort.stage, effort.step] += effort.flops
    return dict(total)


def test_stages_tell_what_they_computed(tmp_path: Path) -> None:
    """Per step, encoder and model apart; what is computed again counts once; replicas and stale
    steps add up to the same."""
    wanted = flops_of(efforts_of(tmp_path / "plain"))
    assert wanted.keys() == {(s, step) for s in ("encoder", "model") for step in (0, 1)}
    assert min(wanted.values()) > 0
    others: list[dict[str, Any]] = [{"activations": "recompute"}, {"replicas": 2}, {"staleness": 1}]
    for index, settings in enumerate(others):
        assert flops_of(efforts_of(tmp_path / str(index), **settings)) == wanted, settings


def test_a_frozen_encoder_needs_no_backward(tmp_path: Path) -> None:
    """A third of the operations, or less, for it has no gradient of its input."""
    full = flops_of(efforts_of(tmp_path / "full"))
    frozen = flops_of(efforts_of(tmp_path / "frozen", freeze=True))
    assert 2.5 * frozen["encoder", 0] < full["encoder", 0] <= 3 * frozen["encoder", 0]
    assert frozen["model", 0] <= full["model", 0]


@pytest.mark.slow
def test_processes_tell_the_same(tmp_path: Path) -> None:
    """Also where evaluations are in between, which are no training."""
    inline = efforts_of(tmp_path / "inline", evaluate=4)
    local = efforts_of(tmp_path / "local", runtime="local", evaluate=4)
    assert flops_of(local) == flops_of(inline)
    assert sum(e.items for e in local) == sum(e.items for e in inline) > 0


def test_nothing_is_counted_unless_asked(tmp_path: Path) -> None:
    """But media are."""
    found: list[Effort] = []

    def observe(event: Event) -> None:
        if isinstance(event, Effort):
            found.append(event)

    execute(small_graph(steps=1), runtime="inline", run_dir=tmp_path, observe=observe)
    assert {effort.flops for effort in found} == {0}
    assert {effort.modality for effort in found} == {"image", ""}
    assert sum(effort.items for effort in found) > 0
