"""What stands for tensors in a simulated run: memory that knows what lies where, and weights that
know which samples they have been trained on.

The stages' protocol is the runtimes' own; these are its leaves, and each checks what it sees. A
span that is read after it was freed, weights stepped without a gradient, a feature of the wrong
version: all of it ends the run with BrokenError.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from flowengine.api import Answer
from flowengine.channel import Row
from flowengine.checkpoint import Part
from flowengine.pool import Holdings, Payload, Span
from flowengine.pool.allocator import align
from flowengine.pool.payload import dtype_name
from flowengine.runtime.encoded import Flight
from flowengine.runtime.encoder_stage import EncoderStage
from flowengine.runtime.objective_stage import FeaturesOf, ObjectiveStage
from flowengine.runtime.round import Round
from flowengine.runtime.site import Site
from flowengine.runtime.step_end import StepEnd
from flowengine.testing.simulator.graphs import ROW_BYTES, num_targets
from flowengine.testing.simulator.watch import Made, Trained, Watch, breaks


@dataclass
class Memory:
    """The pool's bytes, of all workers: by address, what lies there. exchange: gradients that
    replicas hold for each other, by worker and slot."""

    bytes: dict[int, Any] = field(default_factory=dict)
    exchange: dict[tuple[int, int], list[Trained]] = field(default_factory=dict)

    def read(self, address: int) -> Any:
        """What lies there."""
        if address not in self.bytes:
            breaks(f"{address:#x} is read, and nothing lies there: it was freed")
        return self.bytes[address]


class NumberPool(Holdings):
    """A worker's hold on a Memory."""

    def __init__(self, owner: int, limit: int, memory: Memory, watch: Watch) -> None:
        super().__init__(owner, limit)
        self.memory = memory
        self.watch = watch
        self._written: dict[int, list[int]] = defaultdict(list)

    def make_room(self, size: int) -> bool:  # noqa: ARG002
        self.watch.on_reserve(self.owner, self._allocator.used, self.limit)
        return True

    def empty(self, span: Span) -> None:
        self.watch.on_free(span.address)
        for address in self._written.pop(span.address, ()):
            del self.memory.bytes[address]

    def hold(self, payload: Payload) -> None:
        pass

    def let_go(self, address: int, count: int = 1) -> None:
        pass

    def put(self, address: int, what: Any) -> None:
        """Writes to the start of an own span."""
        if address in self.memory.bytes:
            breaks(f"{address:#x} is written, and something lies there")
        self.memory.bytes[address] = what
        self._written[address].append(address)

    def write(self, tensors: Sequence[Tensor], span: Span) -> list[Payload]:
        payloads, offset = [], 0
        for tensor in tensors:
            address = span.address + offset
            if address in self.memory.bytes:
                breaks(f"{address:#x} is written, and something lies there")
            self.memory.bytes[address] = tensor
            self._written[span.address].append(address)
            name, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
            payloads.append(Payload(None, span.address, offset, name, shape))
            offset += align(tensor.nbytes)
        return payloads

    def leased_view(self, payload: Payload) -> Tensor:
        self._held[payload.span] += 1
        tensor = self.memory.read(payload.span + payload.offset)
        return cast(Tensor, View(tensor, self.dropped, payload.span))


class View:
    """A tensor on lease."""

    __slots__ = ("_dropped", "_span", "_tensor")

    def __init__(self, tensor: Tensor, dropped: list[int], span: int) -> None:
        self._tensor = tensor
        self._dropped = dropped
        self._span = span

    def __del__(self) -> None:
        self._dropped.append(self._span)

    @property
    def number(self) -> int:
        """The sample that it is of."""
        return int(self._tensor[(0,) * self._tensor.ndim])


class NumberTrainer(StepEnd):
    """Weights that are the list of what they were trained on, step by step."""

    def __init__(self, site: Site, memory: Memory, watch: Watch, *, staleness: int) -> None:
        super().__init__(site, staleness=staleness)
        self._memory = memory
        self._watch = watch
        self.history: list[tuple[int, ...]] = []
        self._kept: dict[int, int] = {}
        self._by_version: dict[int, list[Trained]] = defaultdict(list)
        self._gradient: list[Trained] = []
        if self.trains and site.start.checkpoint is not None:
            values = site.parts.read(site.start.checkpoint, self.spec.name).values
            self.history, self._kept = list(values["history"]), dict(values["kept"])
        elif staleness:
            self.keep()

    def use(self, version: int) -> None:
        """A forward with the weights of this version."""
        if not self.trains:
            return
        kept = version in self._kept if self.staleness else version == len(self.history)
        if not kept:
            breaks(f"{self.spec.name} uses version {version}, and is at {len(self.history)}")

    def learn(self, version: int, found: Sequence[Trained]) -> None:
        """A backward on the weights of this version."""
        self._by_version[version].extend(found)

    def gather(self, step: int) -> None:
        version = max(0, step - self.staleness)
        self._gradient = self._by_version.pop(version, [])

    def offer(self, step: int) -> list[bool]:
        self._memory.exchange[self.site.worker.index, step % 2] = list(self._gradient)
        return [bool(self._gradient)]

    def add(self, step: int, offers: list[list[bool]]) -> None:
        workers = self.site.topology.replicas_of(self.spec.name)
        self._gradient = []
        for worker, (present,) in zip(workers, offers, strict=True):
            if present:
                self._gradient += self._memory.exchange[worker.index, step % 2]

    def norms(self) -> list[float]:
        return [float(len(self._gradient))] if self._gradient else []

    def step(self, norm: float | None, rate: float) -> None:  # noqa: ARG002
        step = len(self.history)
        self._watch.on_update(self.site.worker, step, self._gradient, norm)
        self.history.append(tuple(sorted(found.sample for found in self._gradient)))
        self._gradient = []

    def keep(self) -> None:
        self._kept.pop(self.version - self.staleness - 1, None)
        self._kept[self.version] = len(self.history)

    def part(self) -> Part:
        return Part({}, {"history": list(self.history), "kept": dict(self._kept)})

    def export(self) -> str:
        return f"weights/{self.spec.name}"


@dataclass
class NumberFlight(Flight):
    """A pack's features on their way."""

    made: Made


class NumberEncoder(EncoderStage):
    """Encodes by writing down whose features these are."""

    trainer: NumberTrainer
    pool: NumberPool
    watch: Watch

    def open(self) -> None:
        super().open()
        graph = self.site.graph
        self.watch = self.pool.watch
        self.trainer = NumberTrainer(
            self.site, self.pool.memory, self.watch, staleness=graph.staleness
        )
        self.dtype = "float32"
        self.row_bytes = ROW_BYTES

    def fly(self, round_: Round, version: int, rows: list[Row]) -> Flight | None:
        self.trainer.use(version)
        samples = []
        for row in rows:
            for medium in self.load_media(row.tree["media"]):
                self.watch.on_look(row.sample, cast(View, medium).number)
                samples.append(row.sample)
        if not samples:
            return None
        modality = self.encoder.modality
        count = sum(row.media.get(modality, 0) for row in rows if row.tree["media"] is not None)
        flight = NumberFlight(
            step=round_.step,
            num_rows=count,
            num_bytes=count * ROW_BYTES,
            learns=self.trainer.trains and not round_.held_out,
            made=Made(modality, round_.number, rows[0].pack, tuple(samples), version),
        )
        return flight

    def settle(self, flight: Flight, span: Span) -> None:
        assert isinstance(flight, NumberFlight)
        self.pool.put(span.address, flight.made)

    def land(self, flight: Flight) -> None:
        assert isinstance(flight, NumberFlight)
        assert flight.span is not None
        made = self.pool.memory.read(flight.span.address)
        if made != replace(flight.made, is_gradient=True):
            breaks(f"the gradient of {flight.made} is {made}")
        found = [Trained(flight.step, sample) for sample in made.samples]
        self.trainer.learn(made.version, found)


class NumberObjective(ObjectiveStage):
    """Trains by writing down whose gradients these are."""

    trainer: NumberTrainer
    pool: NumberPool
    watch: Watch

    def open(self) -> None:
        super().open()
        self.watch = self.pool.watch
        self.trainer = NumberTrainer(self.site, self.pool.memory, self.watch, staleness=0)

    def train(self, row: Row | None, features: FeaturesOf, round_: Round) -> tuple[float, int]:
        assert row is not None
        version = self.trainer.version_for(round_.step, held_out=False)
        self.trainer.use(version)
        ids = self._read(row, features, round_)
        for modality in self.returns:
            for address in {p.span for p in features.get(modality, ()) if p.data is None}:
                made = self.pool.memory.read(address)
                self.pool.memory.bytes[address] = replace(made, is_gradient=True)
        self.trainer.learn(version, [Trained(round_.step, sample) for sample in ids])
        return float(sum(1 + sample for sample in ids)), sum(map(num_targets, ids))

    def answer(self, row: Row | None, features: FeaturesOf, round_: Round) -> Sequence[Answer]:
        assert row is not None
        self.trainer.use(round_.step)
        return [_answer_of(sample) for sample in self._read(row, features, round_)]

    def _read(self, row: Row, features: FeaturesOf, round_: Round) -> list[int]:
        ids = []
        for place, (sample, tree, _) in enumerate(row.tree):
            ids.append(sample)
            for grid in tree["grids"].values():
                self.watch.on_look(sample, cast(View, self.load(grid)).number)
            for modality, parts in features.items():
                if parts[place].data is None:
                    made = self.pool.memory.read(parts[place].span)
                    self.watch.on_features(made, modality, round_, row.pack, sample)
        return ids


@cache
def _answer_of(sample: int) -> Answer:
    return Answer(torch.tensor([sample]), torch.tensor([sample]))
