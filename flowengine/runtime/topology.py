"""From a graph to workers and channels: a worker per stage replica, a channel per pair that trade.

Everything here follows from the graph alone, so every process works it out for itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from flowengine.api import Encoder, Objective, Packer, Sample
from flowengine.graph import Graph
from flowengine.graph.description import POOL, Endpoint, Gang, StageSpec, modality_of
from flowengine.graph.share import disk_share_bytes, share_bytes

COORDINATOR = -1
"""Where notices go: the process that keeps the ledger of steps."""

SAMPLES = "samples"
"""The packer's port for the samples themselves; its other ports are modalities."""


@dataclass(frozen=True)
class WorkerSpec:
    """One stage replica, or one rank of its gang. limit, disk_limit: bytes of payload that it may
    have in host memory and on disk."""

    index: int
    stage: StageSpec
    replica: int
    limit: int
    disk_limit: int = 0

    @property
    def label(self) -> str:
        """Its name for people: the stage's, with the replica if there are several."""
        many = self.stage.num_workers > 1
        return f"{self.stage.name}[{self.replica}]" if many else self.stage.name

    @property
    def rank(self) -> int:
        """Its rank in its gang; 0 without one."""
        return self.replica if self.stage.gang.size > 1 else 0

    @property
    def leader(self) -> int:
        """The first of the ranks that work on the same packs."""
        return self.rank - self.rank % self.stage.gang.tensor

    @property
    def way(self) -> int:
        """Which packs are its: those of this number modulo the stage's ways."""
        return self.replica // self.stage.gang.tensor

    @property
    def leads(self) -> bool:
        """Whether rows and gradients are its to take and give."""
        return self.rank == self.leader


@dataclass(frozen=True)
class ChannelSpec:
    """From a worker's output port to a worker's input port."""

    index: int
    producer: int
    consumer: int
    output: str
    port: str


class Topology:
    """The workers and channels of a graph, in the graph's order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.workers = [
            _make_worker(graph, index, stage, replica)
            for index, (stage, replica) in enumerate(
                (stage, replica) for stage in graph.stages for replica in range(stage.num_workers)
            )
        ]
        self._by_stage = {
            stage.name: [worker for worker in self.workers if worker.stage is stage]
            for stage in graph.stages
        }
        self.channels = [
            ChannelSpec(index, *ends) for index, ends in enumerate(self._channel_ends())
        ]

    def replicas_of(self, name: str) -> list[WorkerSpec]:
        """The workers that run a stage, ranks of a gang among them."""
        return self._by_stage[name]

    def trims(self, channel: ChannelSpec) -> Callable[[Any], Any]:
        """What of a value travels on this channel: what its consumer reads."""
        consumer = self.workers[channel.consumer].stage
        modality = modality_of(consumer)
        if modality is not None:
            return lambda sample: {"media": sample.media.get(modality)}
        if isinstance(consumer.what, Packer) and channel.port == SAMPLES:
            return _without_media
        return lambda value: value

    def sent_type(self, channel: int) -> Any:
        """The type of the values on a channel: its producer's, which is the narrower one."""
        ends = self.channels[channel]
        return self.workers[ends.producer].stage.signature.outputs[ends.output]

    @cached_property
    def pairs(self) -> set[tuple[int, int]]:
        """The pairs of workers (lower index first) that send each other anything."""
        found = {(c.producer, c.consumer) for c in self.channels}
        objectives = [w for w in self.workers if isinstance(w.stage.what, Objective)]
        for pool in self.graph.joins:
            for endpoint in pool.inputs:
                for owner in self.replicas_of(endpoint.stage):
                    found |= {(owner.index, worker.index) for worker in objectives}
        for stage in self.graph.stages:
            if stage.gang.size > 1:
                first, *others = self.replicas_of(stage.name)
                found |= {(first.index, worker.index) for worker in others}
        return {(min(pair), max(pair)) for pair in found}

    def feedback_modalities(self) -> dict[str, Any]:
        """The GradientReturn per modality whose encoder trains."""
        found = {}
        for feedback in self.graph.feedbacks:
            encoder = self.graph.stage(feedback.to)
            if encoder.trains and isinstance(encoder.what, Encoder):
                found[encoder.what.modality] = feedback.what
        return found

    def _channel_ends(self) -> list[tuple[int, int, str, str]]:
        ends = []
        for stage in self.graph.stages:
            for port, endpoints in stage.inputs.items():
                for endpoint in endpoints:
                    for source, name in self._behind(endpoint, port):
                        ends += [
                            (producer.index, consumer.index, source.port, name)
                            for producer in self.replicas_of(source.stage)
                            for consumer in self.replicas_of(stage.name)
                        ]
        return ends

    def _behind(self, endpoint: Endpoint, port: str) -> list[tuple[Endpoint, str]]:
        """The endpoint itself; or what a pool joins, each on a port of its own."""
        if endpoint.stage != POOL:
            return [(endpoint, port)]
        (pool,) = self.graph.joins
        samples, *features = pool.inputs
        named = [(e, modality_of(self.graph.stage(e.stage)) or e.stage) for e in features]
        return [(samples, SAMPLES), *named]


def without_gangs(graph: Graph) -> Graph:
    """The same graph with every gang in one process."""
    alone = copy.copy(graph)
    alone.stages = [replace(stage, gang=Gang()) for stage in graph.stages]
    return alone


def _make_worker(graph: Graph, index: int, stage: StageSpec, replica: int) -> WorkerSpec:
    worker = WorkerSpec(index, stage, replica, 0)
    if not worker.leads:
        return worker
    return replace(
        worker, limit=share_bytes(graph, stage), disk_limit=disk_share_bytes(graph, stage)
    )


def _without_media(sample: Sample) -> dict[str, Any]:
    return {
        "tokens": sample.tokens,
        "labels": sample.labels,
        "note": dict(sample.note),
        "grids": dict(sample.grids),
    }
