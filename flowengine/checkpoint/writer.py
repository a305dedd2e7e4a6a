"""Writes a stage's parts in a thread of its own, so that training goes on meanwhile.

A part is copied first, into memory that is used again for every checkpoint. What is the same until
the next optimizer step is copied in the thread, during the next step's forward; only the rest, such
as buffers, is copied at once. Training waits for the part before, should it still be written.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from flowengine.checkpoint.part import Part, write_part
from flowengine.errors import CheckpointError, OutOfBudgetError
from flowengine.shortage import describe_shortage


class PartWriter:
    """Of one stage; `name` is its part's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._copies: dict[str, Tensor] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._copying: Future[dict[str, Tensor]] | None = None
        self._writing: Future[None] | None = None

    def write(self, directory: Path, part: Part) -> None:
        """Begins to write; CheckpointError or OutOfBudgetError if the part before could not be."""
        self.wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        copies = self._copy_all(part, part.tensors.keys() - part.lasting)
        self._copying = self._thread.submit(self._copy_all, part, part.lasting)
        copied = Part(copies, dict(part.values))
        self._writing = self._thread.submit(self._write, directory, copied, self._copying)

    def settle(self) -> None:
        """Until everything is copied: before the next optimizer step."""
        if self._copying is not None:
            copying, self._copying = self._copying, None
            copying.result()

    def wait(self) -> None:
        """Until what is being written is on the disk; CheckpointError, or OutOfBudgetError where
        the disk is full, if it could not be."""
        self.settle()
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def look(self) -> None:
        """The same without waiting, where the writing is over."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _copy_all(self, part: Part, names: Iterable[str]) -> dict[str, Tensor]:
        with torch.no_grad():
            return {name: self._copy(name, part.tensors[name]) for name in sorted(names)}

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        kept = self._copies.get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty_like(tensor, device="cpu", memory_format=torch.contiguous_format)
            self._copies[name] = kept
        return kept.copy_(tensor)

    def _write(self, directory: Path, part: Part, rest: Future[dict[str, Tensor]]) -> None:
        part.tensors |= rest.result()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_part(directory, self._name, part)
        except (OSError, SafetensorError) as error:
            told = f"{directory}: the part of '{self._name}' cannot be written: {error}"
            intact = "the checkpoints before it are whole"
            shortage = describe_shortage(error)
            if shortage is not None:
                raise OutOfBudgetError(f"{told}: {shortage}; {intact}") from None
            raise CheckpointError(f"{told}; {intact}") from None
