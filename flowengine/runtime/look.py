"""A look at stages, pool and channels, from what the workers say of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from flowengine.runtime.board import Notes
from flowengine.runtime.clockwork import Clockwork
from flowengine.runtime.events import ChannelStatus, PoolStatus, StageStatus
from flowengine.runtime.stage import Stage
from flowengine.runtime.topology import Topology, WorkerSpec


class Filled(Protocol):
    """What a worker has in the pool: its own hold on it, or what it says of that."""

    @property
    def used_bytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def disk_bytes(self) -> int: ...
    @property
    def peak_disk_bytes(self) -> int: ...


def pool_status(topology: Topology, each: Sequence[Filled]) -> PoolStatus:
    """The whole pool, from what each worker has in it."""
    return PoolStatus(
        used_bytes=sum(one.used_bytes for one in each),
        peak_bytes=sum(one.peak_bytes for one in each),
        capacity_bytes=sum(worker.limit for worker in topology.workers),
        disk_bytes=sum(one.disk_bytes for one in each),
        disk_peak_bytes=sum(one.peak_disk_bytes for one in each),
        disk_capacity_bytes=sum(worker.disk_limit for worker in topology.workers),
    )


def channel_statuses(
    topology: Topology, levels: Sequence[Sequence[tuple[int, int]]]
) -> tuple[ChannelStatus, ...]:
    """levels: per worker, rows and bytes on its outgoing channels in their order; channels that a
    worker says nothing of (yet) are left out."""
    found = []
    for worker, theirs in zip(topology.workers, levels, strict=True):
        channels = [c for c in topology.channels if c.producer == worker.index]
        for channel, (items, num_bytes) in zip(channels, theirs, strict=False):
            reader = topology.workers[channel.consumer]
            bounds = reader.stage.credits
            found.append(
                ChannelStatus(
                    producer=worker.label,
                    consumer=reader.label,
                    port=channel.port,
                    items=items,
                    bound_items=bounds.items,
                    num_bytes=num_bytes,
                    bound_bytes=bounds.num_bytes,
                )
            )
    return tuple(found)


def stage_status(
    worker: WorkerSpec, notes: Notes, *, now_s: float, causes: Mapping[str, float], pid: int
) -> StageStatus:
    """One stage replica's status from its notes on the board; the time since its last note counts
    as spent in the state that it noted."""
    seconds = {"busy": notes.busy_s, "blocked": notes.blocked_s, "starved": notes.starved_s}
    if notes.state in seconds:
        seconds[notes.state] += max(0.0, now_s - notes.since_s)
    return StageStatus(
        stage=worker.stage.name,
        replica=worker.replica,
        state=notes.state,
        waits_for=notes.waits_for,
        busy_s=seconds["busy"],
        blocked_s=seconds["blocked"],
        starved_s=seconds["starved"],
        causes=causes,
        since_s=notes.since_s,
        in_hand=notes.in_hand,
        pid=pid,
    )


def take_notes(stage: Stage, clockwork: Clockwork, *, waits: bool) -> Notes:
    """What a worker says of its stage between two pieces of work, when nothing is in hand.

    waits: whether it found nothing to do."""
    return Notes(
        state=stage.waits.state if waits else "busy",
        since_s=clockwork.since_s,
        waits_for=stage.waits.on if waits else "",
        busy_s=clockwork.seconds["busy"],
        blocked_s=clockwork.seconds["blocked"],
        starved_s=clockwork.seconds["starved"],
        used_bytes=stage.pool.used_bytes,
        peak_bytes=stage.pool.peak_bytes,
        num_in_hand=0,
        in_hand=(),
        levels=stage.levels(),
        disk_bytes=stage.pool.disk_bytes,
        peak_disk_bytes=stage.pool.peak_disk_bytes,
    )
