"""Encoders of sound."""

from flowengine.operators.audio.mel import HOP, RATE, log_mel, num_frames
from flowengine.operators.audio.transformer import AudioEncoder, AudioTransformer

__all__ = ["HOP", "RATE", "AudioEncoder", "AudioTransformer", "log_mel", "num_frames"]
