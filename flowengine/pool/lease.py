"""A lease that lives in a `with`: the tensor is there until the lease is given back, not after.

With FLOWENGINE_DEBUG=leases in the environment, a lease notes where it was given back, and its
tensor and all views of it refuse to be used from then on. Without, whoever keeps the tensor reads
what the owner puts there next.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flowengine.errors import LeaseError

DEBUG = "leases" in os.environ.get("FLOWENGINE_DEBUG", "").split(",")
"""Whether leases are watched over in this process."""


class Lease:
    """The right to the tensor at `address`; `give_back(address)` is called when it is released."""

    __slots__ = ("__weakref__", "_address", "_give_back", "_tensor", "_where")

    def __init__(self, tensor: Tensor, address: int, give_back: Callable[[int], None]) -> None:
        self._address = address
        self._give_back = give_back
        self._where = ""
        self._tensor: Tensor | None = _guard(tensor, self) if DEBUG else tensor

    @property
    def tensor(self) -> Tensor:
        """The tensor itself, without a copy; LeaseError once the lease has been released."""
        self.check()
        assert self._tensor is not None
        return self._tensor

    def release(self) -> None:
        """Gives the lease back; LeaseError if that was done before."""
        if self._tensor is None:
            self.check()
        self._tensor = None
        if DEBUG:
            self._where = _caller()
        self._give_back(self._address)

    def check(self) -> None:
        """LeaseError, with where it was released, once the lease has been released."""
        if self._tensor is None:
            hint = self._where or "an unknown line; set FLOWENGINE_DEBUG=leases to have it named"
            raise LeaseError(
                f"the tensor at {self._address:#x} was used after its lease had been released, at "
                f"{hint}; copy what is needed for longer, with clone()"
            )

    def __enter__(self) -> Tensor:
        return self._tensor if self._tensor is not None else self.tensor

    def __exit__(self, *_: object) -> None:
        if self._tensor is not None:
            self.release()


class GuardedTensor(Tensor):
    """A tensor, or a view of one, that can be used only while its lease is held."""

    lease: Lease

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Checks the lease of every guarded argument; views of them are guarded in turn."""
        guarded = [part for part in _flat((args, kwargs)) if isinstance(part, GuardedTensor)]
        leases = {}
        with torch._C.DisableTorchFunctionSubclass():
            for part in guarded:
                part.lease.check()
                leases[part.untyped_storage().data_ptr()] = part.lease
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and not isinstance(result, GuardedTensor):
                lease = leases.get(result.untyped_storage().data_ptr())
                return result if lease is None else _guard(result, lease)
        return result


def _guard(tensor: Tensor, lease: Lease) -> Tensor:
    guarded = tensor.as_subclass(GuardedTensor)
    guarded.lease = lease
    return guarded


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [part for item in value for part in _flat(item)]
    if isinstance(value, dict):
        return [part for item in value.values() for part in _flat(item)]
    return [value]


def _caller() -> str:
    """File and line of the nearest frame outside this file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
