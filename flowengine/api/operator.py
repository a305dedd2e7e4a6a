"""Operators: what a graph is made of.

An operator is described by its fields (configuration; it is made a dataclass by deriving from
Operator), and typed by the signature of `process`. It is cheap, picklable and printable: models and
files are made in `open`, in the process that runs it.

    class Operator          process one value at a time; has state between calls if it likes
    +-- Source              sample i is a function of i
    +-- Packer              chooses which samples form a microbatch, from their lengths alone
    +-- GradientReturn      what happens to a feature's gradient on its way back
    +-- Trainable           has a module with weights; see flowengine.api.trainable
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, dataclass_transform

from flowengine.api.context import Context
from flowengine.api.values import IGNORED, Gradients, Joined, Lengths, Pack, Sample

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, eq_default=False)
class Operator(ABC):
    """Base of all operators. Subclasses define `process(self, value: In) -> Out`.

    The annotations of `process` are the operator's ports. A result of None emits nothing; a result
    derived from `Ports` emits each of its fields on the port of that name.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(kw_only=True, eq=False)(cls)

    def open(self, context: Context) -> None:
        """Called once in the worker, before the first value."""

    def flush(self) -> None:
        """Called at the end of every step and of every evaluation, after its last value."""

    def close(self) -> None:
        """Called once at the end, also after an error; may be called twice."""

    def state(self) -> Mapping[str, Any]:
        """What a plain operator must keep to go on after a step's end: tensors, and values of
        JSON's types. Called at checkpoints, after `flush`. Define both or neither."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave; called after `open` where a run resumes."""


class Source(Operator, Generic[T]):
    """Where samples come from. `read(i)` depends on the fields and on i alone."""

    @abstractmethod
    def read(self, index: int) -> T:
        """Sample `index`, counted from 0."""

    def lengths(self, index: int) -> Lengths:
        """The lengths of sample `index`, without decoding its media.

        The default reads the sample; a source with media says how many feature rows they make.
        """
        sample = self.read(index)
        if not isinstance(sample, Sample) or sample.media:
            raise TypeError(
                f"{type(self).__name__}.read gives {type(sample).__name__} with media or without "
                "tokens; define lengths(index) to say how long they are"
            )
        targets = int((sample.labels != IGNORED).sum())
        return Lengths(tokens=len(sample.tokens), targets=targets)

    def num_samples(self) -> int | None:
        """How many samples there are; None for a source without end."""
        return None


class ReadyStream(Protocol):
    """Samples as they become ready, into packs; of one run."""

    def push(self, sample: int, lengths: Lengths) -> list[list[int]]:
        """One more is ready: the packs that became full, as lists of samples."""

    def flush(self) -> list[list[int]]:
        """The packs of all that wait, full or not."""


class Packer(Operator):
    """Chooses which samples share a microbatch.

    `plan` sees the lengths of one step's samples, before any is decoded, and must be a pure
    function of them. `process` is what the plan does to its members; the engine joins them.

    max_tokens: the most tokens a pack holds.
    when: "planned" has packs follow from lengths alone, before anything is encoded: they are the
        same whatever the timing. "ready" has `stream` make them of what is encoded; `plan` then
        says which samples an encoder takes at a time.
    too_long: what becomes of a longer sample: "error"; "own-pack" for a pack of its own, which
        then needs its room in the pool and on the device; or "dead-letter": it is left out of
        training, and the report says so.
    """

    max_tokens: int
    when: Literal["planned", "ready"] = "planned"
    too_long: Literal["error", "own-pack", "dead-letter"] = "error"

    @abstractmethod
    def plan(self, lengths: Sequence[Lengths]) -> list[list[int]]:
        """Indices into `lengths`, one list per pack; every index exactly once.

        Packs are trained in this order, and encoders are fed in it.
        """

    def stream(self) -> ReadyStream:
        """What makes packs of samples that are ready; called in the worker of the packer."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Called once before workers start: what would make the first step late, such as compiling
        into a cache on the disk, can be done here."""

    def defer(self, lengths: Sequence[Lengths], *, may: Sequence[bool]) -> list[int]:
        """Indices of samples to leave to the next step, of those that may; most often none."""
        del lengths, may
        return []

    def learns_cost(self) -> bool:
        """Whether it wants to be told what packs were measured to cost. Its plans are a function
        of that, too, then, and a run is not repeatable but by its record."""
        return False

    def learn_cost(self, *, linear: float, quadratic: float, constant: float) -> None:
        """From the next plan on, a sample takes linear * tokens + quadratic * tokens**2 + constant
        seconds."""

    def cost_of(self, members: Sequence[Lengths]) -> float:
        """What a pack of these is taken to cost, in any unit; the default counts tokens."""
        return float(sum(member.tokens for member in members))

    def process(self, members: Joined) -> Pack:
        """The port's types; joining is the engine's, and copies nothing."""
        raise TypeError("a packer plans; the engine joins the members")


class GradientReturn(Operator):
    """Returns each gradient to the features it belongs to, as it is. Override `process` to scale,
    clip or record gradients on their way."""

    def process(self, gradients: Gradients) -> Gradients:
        """The gradient to return: same shape and dtype."""
        return gradients
