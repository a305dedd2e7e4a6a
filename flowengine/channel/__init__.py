"""Bounded channels: credits, in-band rounds, and the messages they travel as."""

from flowengine.channel.channel import Inlet, Outlet, Post
from flowengine.channel.link import Link
from flowengine.channel.message import ROW_BYTES, Kind, Message, Row
from flowengine.channel.value import flatten, payloads_of, restore, weigh

__all__ = [
    "ROW_BYTES",
    "Inlet",
    "Kind",
    "Link",
    "Message",
    "Outlet",
    "Post",
    "Row",
    "flatten",
    "payloads_of",
    "restore",
    "weigh",
]
