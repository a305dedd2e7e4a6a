"""Encoders of pictures."""

from flowengine.operators.vision.transformer import VisionEncoder, VisionTransformer

__all__ = ["VisionEncoder", "VisionTransformer"]
