"""Attention over packed segments: no position sees another segment.

One autograd function holds a loop over the segments, so that nothing is computed for a pair of
positions in different segments, and nothing is padded. 64 pages of digit cards (6,340 patches, 3
heads of 32, forward and backward, one core of a Xeon with AVX-512, float32) took 33 ms; torch's own
CPU kernel called per segment took 31, groups of similar length padded together 45 or more. This one
runs on every device and in every dtype, and its gradients have gradients' checks in float64.

Shape letters: T positions, H query heads, G key and value heads, R = H / G, D width of a head,
L positions of a segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def attend(
    q_THD: Tensor,
    k_TGD: Tensor,
    v_TGD: Tensor,
    lengths: Sequence[int],
    *,
    causal: bool,
) -> Tensor:
    """Softmax attention within each segment: [T, H, D].

    `lengths` are the segments' and sum to T. Query head h reads key head h // R. Keeps the
    probabilities for the backward pass: H times the sum of L * L values.
    """
    if sum(lengths) != len(q_THD):
        raise ValueError(
            f"attend: the lengths sum to {sum(lengths)}, there are {len(q_THD)} positions"
        )
    scale = q_THD.shape[-1] ** -0.5
    out: Tensor = _Attend.apply(q_THD, k_TGD, v_TGD, tuple(lengths), causal, scale)  # type: ignore[no-untyped-call]
    return out


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_THD: Tensor,
        k_TGD: Tensor,
        v_TGD: Tensor,
        lengths: tuple[int, ...],
        causal: bool,
        scale: float,
    ) -> Tensor:
        groups = k_TGD.shape[1]
        repeat = q_THD.shape[1] // groups
        zero = q_THD.new_zeros(())
        future = _future(q_THD, longest=max(lengths, default=0), repeat=repeat) if causal else zero
        out_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
        kept = []
        for at in _spans(lengths):
            q_GQD, k_GLD, v_GLD = _by_group(q_THD[at], groups), _heads(k_TGD[at]), _heads(v_TGD[at])
            rows, columns = q_GQD.shape[1], k_GLD.shape[1]
            bias = future[:rows, :columns] if causal else zero
            p_GQL = torch.baddbmm(bias, q_GQD, k_GLD.transpose(1, 2), beta=int(causal), alpha=scale)
            torch.softmax(p_GQL, dim=-1, out=p_GQL)
            out_THD[at] = _by_position(torch.bmm(p_GQL, v_GLD), repeat)
            kept.append(p_GQL)
        ctx.save_for_backward(q_THD, k_TGD, v_TGD, out_THD, *kept)
        ctx.lengths, ctx.scale = lengths, scale
        return out_THD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        (dout_THD,) = grads
        q_THD, k_TGD, v_TGD, out_THD, *kept = ctx.saved_tensors
        groups = k_TGD.shape[1]
        repeat = q_THD.shape[1] // groups
        # The softmax's backward needs sum(p * dp) per row, which is sum(out * dout): one pass here.
        minus_TH1 = (dout_THD * out_THD).sum(-1, keepdim=True).neg_()
        dq_THD, dk_TGD, dv_TGD = (
            torch.empty_like(x, memory_format=torch.contiguous_format)
            for x in (q_THD, k_TGD, v_TGD)
        )
        for at, p_GQL in zip(_spans(ctx.lengths), kept, strict=True):
            q_GQD, k_GLD, v_GLD = _by_group(q_THD[at], groups), _heads(k_TGD[at]), _heads(v_TGD[at])
            dout_GQD, minus_GQ1 = _by_group(dout_THD[at], groups), _by_group(minus_TH1[at], groups)
            dv_TGD[at] = _heads(torch.bmm(p_GQL.transpose(1, 2), dout_GQD))
            ds_GQL = torch.baddbmm(minus_GQ1, dout_GQD, v_GLD.transpose(1, 2)).mul_(p_GQL)
            dq_THD[at] = _by_position(torch.bmm(ds_GQL, k_GLD), repeat)
            dk_TGD[at] = _heads(torch.bmm(ds_GQL.transpose(1, 2), q_GQD))
        return dq_THD.mul_(ctx.scale), dk_TGD.mul_(ctx.scale), dv_TGD, None, None, None


def _spans(lengths: Sequence[int]) -> Iterator[slice]:
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length


def _heads(x: Tensor) -> Tensor:
    """[L, G, D] to [G, L, D] and back."""
    return x.transpose(0, 1)


def _by_group(x_LHD: Tensor, groups: int) -> Tensor:
    """[L, H, D] to [G, L * R, D]: all query heads of a group are rows against the same keys."""
    length, heads, width = x_LHD.shape
    if heads == groups:
        return x_LHD.transpose(0, 1)
    split = x_LHD.view(length, groups, heads // groups, width).transpose(0, 1)
    return split.reshape(groups, length * (heads // groups), width)


def _by_position(x_GQD: Tensor, repeat: int) -> Tensor:
    """[G, L * R, D] to [L, H, D]."""
    groups, rows, width = x_GQD.shape
    split = x_GQD.view(groups, rows // repeat, repeat, width).transpose(0, 1)
    return split.reshape(rows // repeat, groups * repeat, width)


def _future(like: Tensor, *, longest: int, repeat: int) -> Tensor:
    """Minus infinity where row q, of position q // R, must not see a later position; else 0."""
    mask = like.new_full((longest, longest), -torch.inf).triu_(1)
    return mask.repeat_interleave(repeat, dim=0)
