"""Layers that vision and language share: attention over packed segments, rotation, blocks."""

from flowengine.operators.layers.attention import attend
from flowengine.operators.layers.block import Block, feed_width, initialise
from flowengine.operators.layers.rotation import angles, rotate
from flowengine.operators.layers.share import share_blocks

__all__ = [
    "Block",
    "angles",
    "attend",
    "feed_width",
    "initialise",
    "rotate",
    "share_blocks",
]
