"""The dtypes that a stage may compute in."""

from __future__ import annotations

from typing import Literal

DType = Literal["float64", "float32", "bfloat16", "float16"]

ITEM_BYTES: dict[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one value, by dtype."""


def is_half(dtype: DType) -> bool:
    """Whether weights in it are too coarse for an optimizer to step on."""
    return ITEM_BYTES[dtype] == 2


def master_dtype(dtype: DType) -> DType:
    """What weights, gradients and optimizer state are summed and stepped in: float32 for a half
    dtype, else itself."""
    return "float32" if is_half(dtype) else dtype
