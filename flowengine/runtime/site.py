"""A stage's place in a run: its pool, its channels, and whom it can write to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowengine.api import Context, Encoder, Packer
from flowengine.api.context import Reported
from flowengine.channel import Inlet, Kind, Outlet, Post
from flowengine.checkpoint import PartStore
from flowengine.graph import Graph
from flowengine.graph.description import StageSpec
from flowengine.pool import Holdings
from flowengine.runtime.muster import Muster
from flowengine.runtime.round import derive_seed
from flowengine.runtime.spans import Work
from flowengine.runtime.start import BEGINNING, Start
from flowengine.runtime.topology import COORDINATOR, Topology, WorkerSpec

if TYPE_CHECKING:
    from flowengine.runtime.mesh import GangMesh

_DISK = PartStore()


@dataclass
class Edge:
    """All outlets from one output port to one reading stage's port, one per worker of it.

    tensor: every how many-th of them takes rows; the others hear of rounds alone.
    """

    output: str
    reader: str
    trim: Callable[[Any], Any]
    outlets: list[Outlet]
    tensor: int = 1

    def route(self, key: int) -> Outlet:
        """The outlet for pack or sample `key`: replicas take turns, whatever the timing."""
        takers = self.outlets[:: self.tensor]
        return takers[key % len(takers)]


@dataclass
class Site:
    """What a stage is given: everything outside it that it touches. mesh: of its gang, once the
    worker has joined one."""

    topology: Topology
    worker: WorkerSpec
    pool: Holdings
    edges: list[Edge]
    inlets: list[Inlet]
    post: Post
    clock: Callable[[], float]
    run_dir: Path
    on_hand: Callable[[tuple[int, ...]], None]
    on_work: Callable[[Work], None]
    start: Start
    parts: PartStore
    muster: Muster
    mesh: GangMesh | None = None

    @property
    def graph(self) -> Graph:
        return self.topology.graph

    def ready_packers(self) -> list[int]:
        """The workers it sends to that pack what is ready."""
        consumers = {outlet.consumer for edge in self.edges for outlet in edge.outlets}
        return [
            worker.index
            for worker in self.topology.workers
            if worker.index in consumers and packs_ready(worker.stage)
        ]

    def notify(self, subject: str, *fields: Any) -> None:
        """Tells the coordinator."""
        self.post(COORDINATOR, (Kind.NOTICE, subject, *fields))

    def seed(self, *parts: str | int) -> int:
        """The seed for this stage and purpose; the same in every replica."""
        return derive_seed(self.graph.seed, self.worker.stage.name, *parts)

    def context(self, report: Callable[[str, Reported], None]) -> Context:
        """What the stage's operator learns."""
        return Context(
            stage=self.worker.stage.name,
            replica=self.worker.way,
            num_replicas=self.worker.stage.ways,
            seed=self.graph.seed,
            run_dir=self.run_dir,
            report=report,
            mesh=self.mesh.mesh if self.mesh is not None else None,
        )


def packs_ready(stage: StageSpec) -> bool:
    """Whether it makes packs of what is encoded, rather than as planned."""
    return isinstance(stage.what, Packer) and stage.what.when == "ready"


def make_site(
    topology: Topology,
    index: int,
    *,
    pool: Holdings,
    post: Post,
    clock: Callable[[], float],
    run_dir: Path,
    on_hand: Callable[[tuple[int, ...]], None] = lambda _: None,
    on_work: Callable[[Work], None] = lambda _: None,
    start: Start = BEGINNING,
    parts: PartStore = _DISK,
) -> Site:
    """The site of worker `index`, its outlets and inlets made from the topology."""
    worker = topology.workers[index]
    edges: dict[tuple[str, str, str], Edge] = {}
    for channel in topology.channels:
        if channel.producer == index:
            reader = topology.workers[channel.consumer].stage
            outlet = Outlet(
                channel.index,
                channel.consumer,
                items=reader.credits.items,
                num_bytes=reader.credits.num_bytes,
                post=post,
                keeps_packs=_keeps_packs(reader),
            )
            edge = edges.setdefault(
                (channel.output, reader.name, channel.port),
                Edge(
                    channel.output,
                    reader.name,
                    topology.trims(channel),
                    [],
                    tensor=reader.gang.tensor,
                ),
            )
            edge.outlets.append(outlet)
    inlets = [
        Inlet(channel.index, channel.producer, port=channel.port, post=post)
        for channel in topology.channels
        if channel.consumer == index
    ]
    return Site(
        topology=topology,
        worker=worker,
        pool=pool,
        edges=list(edges.values()),
        inlets=inlets,
        post=post,
        clock=clock,
        run_dir=run_dir,
        on_hand=on_hand,
        on_work=on_work,
        start=start,
        muster=_make_muster(topology, worker, post),
        parts=parts,
    )


def _keeps_packs(reader: StageSpec) -> bool:
    what = reader.what
    return isinstance(what, Encoder) or (isinstance(what, Packer) and what.when == "planned")


def _make_muster(topology: Topology, worker: WorkerSpec, post: Post) -> Muster:
    if worker.stage.gang.size == 1:
        return Muster([worker.index], 0, post)
    ranks = [each.index for each in topology.replicas_of(worker.stage.name)]
    return Muster(ranks, worker.replica, post)
