"""Which samples share a pack: in planned mode, nothing but their lengths decides."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from fakes import VOCABULARY, small_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from running import run_graph
from torch import Tensor

from flowengine.api import Lengths, Pack
from flowengine.channel import Kind, Message, Row
from flowengine.operators.language import LanguageModel
from flowengine.operators.language.transformer import LanguageTransformer
from flowengine.operators.packing import CostPacker
from flowengine.pool import Pool
from flowengine.runtime.ready_packer import ReadyPacker
from flowengine.runtime.round import Round
from flowengine.runtime.segments import make_segments
from flowengine.runtime.site import make_site
from flowengine.runtime.stage import Stage
from flowengine.runtime.stages import make_stage
from flowengine.runtime.topology import SAMPLES, Topology

seen: list[tuple[int, ...]] = []


class WatchedModel(LanguageModel):
    """Notes the samples of its packs."""

    def loss(self, module: LanguageTransformer, pack: Pack) -> Tensor:
        seen.append(pack.ids)
        return super().loss(module, pack)


def test_packs_do_not_depend_on_replicas(tmp_path: Path) -> None:
    """The objective sees the same packs in the same order, with 1, 2, 3 and 7 encoders."""
    found = []
    for replicas in (1, 2, 3, 7):
        seen.clear()
        graph = small_graph(replicas=replicas, steps=3, min_packs=3)
        model = WatchedModel(vocabulary=VOCABULARY, width=12, depth=1, heads=2, groups=1)
        graph.stage("model").what = model
        run_graph(graph, tmp_path / str(replicas))
        found.append(list(seen))
    assert len(found[0]) >= 9
    assert all(packs == found[0] for packs in found[1:])


class Bench:
    """A packer's stage, alone; rows are handed to it and its packs are kept."""

    def __init__(self, **packer: Any) -> None:
        graph = small_graph(replicas=2)
        graph.stage("packer").what = CostPacker(max_tokens=32, **packer)
        topology = Topology(graph)
        (worker,) = topology.replicas_of("packer")
        self.packs: list[list[int]] = []
        self.segments = make_segments(topology)
        pool = Pool(worker.index, self.segments, worker.limit)
        site = make_site(
            topology,
            worker.index,
            pool=pool,
            post=self._post,
            clock=lambda: 0.0,
            run_dir=Path(),
        )
        self.stage: Stage = make_stage(site)
        self.inlets = {inlet.channel: inlet.port for inlet in site.inlets}

    def open(self, sizes: list[int]) -> None:
        round_ = Round(0, 0, False, sum(sizes), 1, tuple(sizes))
        for channel in self.inlets:
            self.stage.handle(0, (Kind.OPEN, channel, round_.to_fields()))

    def arrive(self, port: str, sample: int, *, pack: int, place: int, tokens: int) -> None:
        channel = next(c for c, name in self.inlets.items() if name == port)
        row = Row(0, sample, pack, place, tokens, {}, 10, {"rows": sample})
        self.stage.handle(0, (Kind.ROWS, channel, [list(row)]))
        while self.stage.advance():
            pass

    def close(self) -> None:
        for segment in self.segments.values():
            segment.close()

    def _post(self, worker: int, message: Message) -> None:
        del worker
        if message[0] == Kind.ROWS:
            self.packs += [[member[0] for member in Row(*row).tree] for row in message[2]]


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_any_order_of_arrival_gives_the_planned_packs(
    sizes: list[int], order: random.Random
) -> None:
    """Whenever rows arrive, packs leave as planned, in the plan's order."""
    bench = Bench()
    numbers = iter(range(99))
    plan = [[next(numbers) for _ in range(size)] for size in sizes]
    rows = [
        (port, sample, pack, place)
        for pack, members in enumerate(plan)
        for place, sample in enumerate(members)
        for port in (SAMPLES, "image")
    ]
    bench.open(sizes)
    for port, sample, pack, place in order.sample(rows, len(rows)):
        bench.arrive(port, sample, pack=pack, place=place, tokens=4)
    assert bench.packs == plan
    bench.close()


def test_ready_packs_follow_the_order_of_features() -> None:
    """In ready mode a sample takes part when its features are there; who is held up gets what there
    is."""
    bench = Bench(when="ready", window=2)
    assert isinstance(bench.stage, ReadyPacker)
    bench.open([2, 2, 2])
    lengths = [[sample, 16, 1, {}, {}] for sample in range(6)]
    bench.stage.handle(-1, (Kind.NOTICE, "lengths", 0, lengths))
    for sample in range(6):
        bench.arrive(SAMPLES, sample, pack=sample // 2, place=sample % 2, tokens=16)
    assert bench.packs == []
    for sample in (5, 4, 1):
        bench.arrive("image", sample, pack=sample // 2, place=sample % 2, tokens=16)
    assert bench.packs == [[5, 4]]
    bench.stage.handle(1, (Kind.NOTICE, "held_up", 1, True))
    assert bench.stage.advance()
    assert bench.packs == [[5, 4], [1]]
    bench.arrive("image", 0, pack=0, place=0, tokens=16)
    assert bench.packs[-1] == [0]
    bench.stage.handle(1, (Kind.NOTICE, "held_up", 1, False))
    bench.arrive("image", 2, pack=1, place=0, tokens=16)
    assert bench.packs[-1] == [0]
    bench.arrive("image", 3, pack=1, place=1, tokens=16)
    assert bench.packs[-1] == [2, 3]
    bench.close()


@pytest.mark.parametrize("group", [1, 3, 100])
def test_an_encoder_takes_samples_in_a_row(group: int) -> None:
    """Groups are of consecutive samples, so many and so long at most."""
    lengths = [Lengths(tokens=tokens, targets=1) for tokens in (10, 20, 10, 5, 5, 5, 30, 8)]
    groups = CostPacker(max_tokens=32, when="ready", group=group).plan(lengths)
    assert [index for members in groups for index in members] == list(range(8))
    assert all(len(members) <= group for members in groups)
    assert all(sum(lengths[index].tokens for index in members) <= 32 for members in groups)
