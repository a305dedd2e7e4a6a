"""Layers that vision and language share: attention over packed segments, rotation, blocks."""

from flowengine.operators.layers.attention import attend
from flowengine.operators.layers.block import Block, feed_width, initialise
from flowengine.operators.layers.rotation import angles, rotate

__all__ = ["Block", "angles", "attend", "feed_width", "initialise", "rotate"]
