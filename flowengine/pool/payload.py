"""Where a tensor's bytes are: in the message itself when small, else in the pool."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

INLINE_BYTES = 8192
"""Payloads up to this size travel in the message: cheaper than a lease and its return."""

DTYPE_NAMES = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
"""The dtypes a payload may have: those whose elements are whole bytes, without a scale beside."""

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Payload:
    """A tensor at rest.

    data: its bytes, or None when it lies in the pool: `offset` bytes into the span at `span`.
    array: whether it was a NumPy array and is to become one again.
    """

    data: bytes | None
    span: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    array: bool = False

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name without "torch."; KeyError for dtypes that have no plain bytes."""
    return _DTYPE_NAMES[dtype]


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    return _DTYPES[name]
