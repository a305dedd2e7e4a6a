"""Attention over packed segments, against a dense mask."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from flowengine.operators.layers import attend

Heads = tuple[Tensor, Tensor, Tensor]
LENGTHS = {"one": (7,), "many": (3, 1, 9, 4, 1), "none": ()}


def draw(lengths: tuple[int, ...], *, heads: int, groups: int, seed: int = 0) -> Heads:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(sum(lengths), number, 6, dtype=torch.float64, generator=generator)
        for number in (heads, groups, groups)
    )
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def dense(q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...], *, causal: bool) -> Tensor:
    """One softmax over all positions, with a mask."""
    segment = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.int64))
    seen = segment[:, None] == segment
    if causal:
        seen = seen.tril()
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    logits = torch.einsum("thd,shd->hts", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hts,shd->thd", logits.masked_fill(~seen, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_attention_is_a_dense_masks(
    lengths: tuple[int, ...], heads: int, groups: int, causal: bool
) -> None:
    """Values and gradients agree with a dense mask in float64."""
    inputs = draw(lengths, heads=heads, groups=groups)
    found = attend(*inputs, lengths, causal=causal)
    wanted = dense(*inputs, lengths, causal=causal)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weight = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).view_as(wanted)
    for one, other in zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((wanted * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_passes_gradcheck(causal: bool) -> None:
    """The written gradient is the function's."""
    inputs = draw((2, 3), heads=2, groups=1)
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, (2, 3), causal=causal), inputs)


def test_segments_do_not_see_each_other() -> None:
    """Another segment's content changes no bit of a segment's values or gradients."""
    lengths = (5, 8, 3)
    ends = [0, 5, 13, 16]
    results = []
    for seed in (1, 2):
        inputs = draw(lengths, heads=4, groups=2)
        start, stop = ends[1:3]
        with torch.no_grad():
            for part, other in zip(
                inputs, draw(lengths, heads=4, groups=2, seed=seed), strict=True
            ):
                part[start:stop] = other[start:stop]
        out = attend(*inputs, lengths, causal=False)
        results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for one, other in zip(*results, strict=True):
        for index, (start, stop) in enumerate(pairwise(ends)):
            assert torch.equal(one[start:stop], other[start:stop]) == (index != 1)


def test_lengths_must_sum_to_the_positions() -> None:
    """Lengths that leave positions over are refused."""
    with pytest.raises(ValueError, match="the lengths sum to 4, there are 5 positions"):
        attend(*draw((5,), heads=1, groups=1), (4,), causal=True)
