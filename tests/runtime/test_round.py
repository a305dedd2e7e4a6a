"""Rounds: which samples a step takes, and when evaluations come."""

from __future__ import annotations

import pytest
from fakes import MixedSamples, small_graph
from hypothesis import given
from hypothesis import strategies as st

from flowengine import Graph
from flowengine.channel import Kind
from flowengine.channel.message import FrameReader, encode
from flowengine.runtime.round import Round, Stretch, derive_seed, num_steps, stretches


def rounds(graph: Graph, *, total: int | None = None) -> list[Stretch]:
    return list(stretches(graph, MixedSamples(total=total)))


def test_a_round_travels() -> None:
    """A round comes out of a message as it went in."""
    round_ = Round(3, 2, True, 8, 40, (3, 5))
    ((_, _, fields),) = FrameReader().feed(encode((Kind.OPEN, 1, round_.to_fields())))
    assert Round.from_fields(fields) == round_


@given(size=st.integers(1, 9), steps=st.integers(1, 7))
def test_steps_take_the_samples_in_order(size: int, steps: int) -> None:
    """Steps cut the sequence of samples into stretches of one size, without gap or overlap."""
    found = rounds(small_graph(samples=size, steps=steps))
    assert [(r.number, r.step, r.start, r.stop) for r in found] == [
        (i, i, i * size, (i + 1) * size) for i in range(steps)
    ]


@given(size=st.integers(1, 9), total=st.integers(1, 40))
def test_a_source_with_an_end_is_trained_once(size: int, total: int) -> None:
    """Without steps=, all samples are taken, each once; only the last step may be smaller."""
    graph = small_graph(samples=size, steps=None)
    found = rounds(graph, total=total)
    assert len(found) == num_steps(graph, MixedSamples(total=total)) == -(-total // size)
    assert [i for r in found for i in range(r.start, r.stop)] == list(range(total))
    assert all(r.stop - r.start == size for r in found[:-1])


def test_steps_go_on_beyond_the_end() -> None:
    """With steps=, ids go on counting where a finite source begins again."""
    found = rounds(small_graph(samples=4, steps=3), total=5)
    assert [(r.start, r.stop) for r in found] == [(0, 4), (4, 8), (8, 12)]


@pytest.mark.parametrize(
    ("every", "after"), [(0, [7]), (1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6, 7]), (7, [7]), (9, [7])]
)
def test_evaluations_come_every_so_often(every: int, after: list[int]) -> None:
    """An evaluation follows every k-th step and the last one, once, on the same held-out samples;
    rounds are numbered in their order."""
    graph = small_graph(steps=7, evaluate=5)
    object.__setattr__(graph.evaluations[0], "every", every)
    found = rounds(graph)
    held_out = [r for r in found if r.held_out]
    assert [r.step for r in held_out] == after
    assert all((r.start, r.stop) == (0, 5) for r in held_out)
    assert [r.number for r in found] == list(range(7 + len(after)))


def test_seeds_depend_on_every_part() -> None:
    """A seed is the same in every process, fits in 63 bits, and differs in any part."""
    assert derive_seed(0, "encoder", "weights") == 6489886514094233329
    parts: list[tuple[int, str, int]] = [(s, n, i) for s in (0, 1) for n in "ab" for i in range(9)]
    seeds = {derive_seed(s, n, i) for s, n, i in parts}
    assert len(seeds) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)
