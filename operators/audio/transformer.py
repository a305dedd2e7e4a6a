"""An encoder of sound after Whisper's (arXiv 2212.04356), for clips of any length.

Two convolutions over a log-mel spectrogram, the second of stride 2; transformer blocks in which a
frame sees its own clip; then every `stack` frames become one feature row. Unlike Whisper's, clips
are not padded to 30 seconds, and positions are rotary.

Shape letters: F spectrogram frames of a clip, T frames of all clips after the convolutions,
B bands, C channels, N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flowengine.api import Encoder, TransformerShape
from flowengine.operators.audio.mel import log_mel, num_frames
from flowengine.operators.layers import Block, angles, feed_width, initialise
from flowengine.operators.layers.block import EPS


@dataclass(frozen=True)
class Clips:
    """spectra: fp32 [F, B] of each clip."""

    spectra: tuple[Tensor, ...]


class AudioTransformer(nn.Module):
    """Spectrograms to feature rows [N, output]."""

    def __init__(
        self, *, bands: int, width: int, depth: int, heads: int, stack: int, output: int
    ) -> None:
        super().__init__()
        self.head, self.stack = width // heads, stack
        self.first = nn.Conv1d(bands, width, kernel_size=3, padding=1)
        self.second = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.blocks = nn.ModuleList(
            Block(width=width, heads=heads, groups=heads, causal=False, gated=False)
            for _ in range(depth)
        )
        self.norm = nn.RMSNorm(width, eps=EPS)
        self.merge = nn.Linear(stack * width, output)
        self.project = nn.Linear(output, output)
        initialise(self, depth=depth)

    def forward(self, clips: Clips) -> Tensor:
        hearings = [self.hear(spectrum) for spectrum in clips.spectra]
        lengths = [len(heard) for heard in hearings]
        x_TC = torch.cat(hearings)
        places = torch.cat([torch.arange(length) for length in lengths]).to(x_TC.device)
        turn = angles(places[:, None], width=self.head, dtype=x_TC.dtype)
        for block in self.blocks:
            x_TC = block(x_TC, turn, lengths)
        stacked = [self.stacked(clip) for clip in self.norm(x_TC).split(lengths)]
        rows: Tensor = self.project(F.gelu(self.merge(torch.cat(stacked))))
        return rows

    def hear(self, spectrum_FB: Tensor) -> Tensor:
        """A clip's frames after the convolutions: [ceil(F / 2), C]."""
        x_BF = spectrum_FB.to(self.first.weight.dtype).T[None]
        heard: Tensor = F.gelu(self.second(F.gelu(self.first(x_BF))))
        return heard[0].T

    def stacked(self, clip_TC: Tensor) -> Tensor:
        """Every `stack` frames side by side, the last ones with zeros: [rows, stack * C]."""
        missing = -len(clip_TC) % self.stack
        return F.pad(clip_TC, (0, 0, 0, missing)).reshape(-1, self.stack * clip_TC.shape[1])


class AudioEncoder(Encoder[AudioTransformer, Clips]):
    """Sound, floats [num_samples] at 16 kHz, to one feature row per `stack` * 20 ms.

    `num_rows` says how many rows a clip has. bands: of the mel spectrogram.
    """

    width: int = 64
    depth: int = 2
    heads: int = 2
    output: int = 128
    bands: int = 40
    stack: int = 4
    modality: ClassVar[str] = "audio"

    def num_rows(self, num_samples: int) -> int:
        """The feature rows of a clip of so many samples."""
        heard = -(-num_frames(num_samples) // 2)
        return -(-heard // self.stack)

    def feature_shape(self) -> tuple[int, ...]:
        return (self.output,)

    def shape(self) -> TransformerShape:
        return TransformerShape(
            layers=self.depth,
            width=self.width,
            heads=self.heads,
            hidden=feed_width(self.width, gated=False),
            positions_per_row=self.stack,
            row_weights=(self.stack * self.width + self.output) * self.output,
            position_weights=3 * self.width * (2 * self.bands + self.width),
        )

    def build(self) -> AudioTransformer:
        return AudioTransformer(
            bands=self.bands,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            stack=self.stack,
            output=self.output,
        )

    def batch(self, media: Sequence[Tensor]) -> Clips:
        return Clips(tuple(log_mel(clip, bands=self.bands) for clip in media))

    def forward(self, module: AudioTransformer, batch: Clips) -> Tensor:
        rows: Tensor = module(batch)
        return rows
