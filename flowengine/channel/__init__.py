"""Bounded channels: credits, in-band rounds, and the messages they travel as."""

from flowengine.channel.channel import Inlet, Outlet, Post
from flowengine.channel.direct import DirectEnd, DirectInlet, DirectOutlet, open_direct
from flowengine.channel.link import Link
from flowengine.channel.message import ROW_BYTES, Kind, Message, Row
from flowengine.channel.value import flatten, payloads_of, restore, weigh

__all__ = [
    "ROW_BYTES",
    "DirectEnd",
    "DirectInlet",
    "DirectOutlet",
    "Inlet",
    "Kind",
    "Link",
    "Message",
    "Outlet",
    "Post",
    "Row",
    "flatten",
    "open_direct",
    "payloads_of",
    "restore",
    "weigh",
]
