"""Floating-point operations that a forward and its backward need, counted as they are called.

What is counted, for a product of matrices of inner size K with an output of N numbers, is 2 N K:
torch's linear, matmul and the like, and convolutions; everything else is far less and is left out.
Scaled dot-product attention is two such products; where it is causal, only the pairs that may see
each other count. The backward of a product is one product of the same size for every operand that
needs a gradient: so frozen weights and adapters count as what they cost.

The backward of a layer whose output nobody uses counts as well.

These are the model's operations: what is computed again (recomputed activations, checkpointed
layers, flash attention's backward) counts once. Korthikanti et al., arXiv 2205.05198, appendix A,
calls their rate the model FLOP/s, and its share of the hardware's peak the MFU after PaLM (arXiv
2204.02311, appendix B).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flowengine.runtime.site import Site


class FlopCounter(TorchFunctionMode):
    """Counts within a `with`. flops: so far. learns: whether a backward follows.

    Products inside an autograd.Function have no autograd graph of their own; they count as if both
    operands needed a gradient.
    """

    def __init__(self, *, learns: bool) -> None:
        super().__init__()
        self.flops = 0
        self._learns = learns

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        count = _COUNTED.get(func)
        if count is not None:
            operands, forward, products = count(out, *args, **kwargs)
            self.flops += forward + self._backward(operands, forward, products)
        return out

    def _backward(self, operands: tuple[Tensor, ...], forward: int, products: int) -> int:
        if not self._learns:
            return 0
        if not torch.is_grad_enabled():
            return 2 * forward
        if products == 2:
            return 2 * forward * any(x.requires_grad for x in operands)
        return forward * sum(x.requires_grad for x in operands)


_Count = tuple[tuple[Tensor, ...], int, int]
"""The operands, the forward's operations, and of how many products they are."""


def _linear(out: Tensor, x: Tensor, weight: Tensor, *_: Any, **__: Any) -> _Count:
    return (x, weight), 2 * out.numel() * weight.shape[-1], 1


def _matmul(out: Tensor, one: Tensor, other: Tensor, **_: Any) -> _Count:
    return (one, other), 2 * out.numel() * one.shape[-1], 1


def _added(out: Tensor, added: Tensor, one: Tensor, other: Tensor, **_: Any) -> _Count:
    del added
    return (one, other), 2 * out.numel() * one.shape[-1], 1


def _convolution(out: Tensor, x: Tensor, weight: Tensor, *_: Any, **__: Any) -> _Count:
    return (x, weight), 2 * out.numel() * weight[0].numel(), 1


def _attention(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *more: Any,
    is_causal: bool = False,
    **_: Any,
) -> _Count:
    is_causal = is_causal or (len(more) > 2 and bool(more[2]))
    rows, columns = query.shape[-2], key.shape[-2]
    pairs = rows * (rows + 1) // 2 if is_causal and rows == columns else rows * columns
    heads = out.numel() // max(1, rows * out.shape[-1])
    return (query, key, value), 2 * heads * pairs * (query.shape[-1] + value.shape[-1]), 2


_COUNTED: dict[Any, Callable[..., _Count]] = {
    F.linear: _linear,
    F.scaled_dot_product_attention: _attention,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _convolution),
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), _convolution),
    **dict.fromkeys((torch.matmul, torch.mm, torch.bmm), _matmul),
    **dict.fromkeys((Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__), _matmul),
    **dict.fromkeys((torch.addmm, torch.baddbmm, Tensor.addmm, Tensor.baddbmm), _added),
}


class Efforts:
    """What a stage replica has computed, by training step. modality: an encoder's. Of the ranks
    that work on one pack together, the first counts."""

    def __init__(self, site: Site, *, modality: str = "") -> None:
        self._site = site
        self._modality = modality
        self._counts = site.graph.counts_flops and site.worker.leads
        self._items: Counter[int] = Counter()
        self._flops: Counter[int] = Counter()

    @contextmanager
    def counting(self, step: int, *, learns: bool) -> Iterator[None]:
        """Counts what is called within for this step."""
        if not self._counts:
            yield
            return
        with FlopCounter(learns=learns) as counter:
            yield
        self._flops[step] += counter.flops

    def add_items(self, step: int, number: int) -> None:
        """So many media were encoded for this step."""
        self._items[step] += number

    def tell(self, step: int) -> None:
        """Tells the coordinator of a step that is over."""
        effort = self._items.pop(step, 0), self._flops.pop(step, 0)
        self._site.notify("effort", step, self._site.worker.index, self._modality, *effort)
