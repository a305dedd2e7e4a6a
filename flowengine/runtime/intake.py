"""How a source's samples are taken in: measured, read, and left out where they are bad.

Rules.
- A source that may leave samples out reads those of a step before the step is planned. So a plan
  holds sound samples alone: its packs and its number of targets are those of a data set that never
  had the bad ones.
- What was read is kept until it is sent, up to AHEAD_BYTES; beyond that it is read again.
- Only SampleError is about a sample; any other error is a mistake in a program and ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import Tensor

from flowengine.api import Lengths, SampleError, Source
from flowengine.channel import flatten
from flowengine.graph.description import StageSpec
from flowengine.runtime.recovery import refuse_more
from flowengine.runtime.start import DeadLetter

AHEAD_BYTES = 2**28


class Member(NamedTuple):
    """A sample of a round: its id, its index in the source, its lengths if packs need them."""

    sample: int
    place: int
    lengths: Lengths | None


class Intake:
    """Of a source stage. leave_out: told of every sample that is left out, with the reason."""

    def __init__(
        self,
        stage: StageSpec,
        *,
        letters: Iterable[DeadLetter],
        leave_out: Callable[[int, str], None],
    ) -> None:
        self._stage = stage
        self._letters = list(letters)
        self._leave_out = leave_out
        self._read: dict[int, Any] = {}
        self._num_bytes = 0

    def measure(self, source: Source[Any], member: Member, *, planned: bool) -> Member | None:
        """The member with its lengths where it is to be planned; None if it is left out."""
        try:
            lengths = source.lengths(member.place) if planned else None
            if self._stage.spares and member.sample not in self._read:
                self._keep(member.sample, source.read(member.place))
        except SampleError as error:
            if not self._stage.spares:
                raise
            self._refuse(member.sample, str(error))
            return None
        return member._replace(lengths=lengths)

    def read(self, source: Source[Any], member: Member) -> Any:
        """The sample, which may have been read already."""
        if member.sample not in self._read:
            return source.read(member.place)
        value = self._read.pop(member.sample)
        self._num_bytes -= count_bytes(value)
        return value

    def _keep(self, sample: int, value: Any) -> None:
        size = count_bytes(value)
        if self._num_bytes + size <= AHEAD_BYTES:
            self._read[sample] = value
            self._num_bytes += size

    def _refuse(self, sample: int, reason: str) -> None:
        self._letters.append(DeadLetter(sample, self._stage.name, reason))
        refuse_more(self._stage.name, self._letters, spares=self._stage.spares, text=reason)
        self._leave_out(sample, reason)


def count_bytes(value: Any) -> int:
    """Bytes of the tensors of a value."""
    sizes: list[int] = []

    def place(tensor: Tensor, _array: bool) -> None:
        sizes.append(tensor.nbytes)

    flatten(value, place)
    return sum(sizes)
