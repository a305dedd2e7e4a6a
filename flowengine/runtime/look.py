"""A look at the channels: how full each is, from what its producer says of its outlets."""

from __future__ import annotations

from collections.abc import Sequence

from flowengine.runtime.events import ChannelStatus
from flowengine.runtime.topology import Topology


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
