"""Log-mel spectrograms as Whisper reads them (arXiv 2212.04356, section 2.2): 16 kHz, windows of
25 ms every 10 ms."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

RATE = 16_000
WINDOW = 400
HOP = 160
DYNAMIC = 8.0
"""Powers of ten below a clip's loudest bin that are still told apart."""


def num_frames(num_samples: int) -> int:
    """The frames of a clip of so many samples at RATE."""
    return num_samples // HOP


def log_mel(samples: Tensor, *, bands: int) -> Tensor:
    """fp32 [frames, bands] of a clip fp32 [num_samples] in [-1, 1]; ValueError for another shape,
    or fewer samples than half a window."""
    if samples.ndim != 1 or not samples.is_floating_point() or len(samples) <= WINDOW // 2:
        raise ValueError(
            f"a clip has shape {tuple(samples.shape)} and {samples.dtype}; expected floats "
            f"[num_samples] in [-1, 1] at {RATE} Hz, more than {WINDOW // 2} of them"
        )
    window = torch.hann_window(WINDOW)
    spectrum = torch.stft(samples.float(), WINDOW, HOP, window=window, return_complex=True)
    power = spectrum[:, : num_frames(len(samples))].abs().square()
    logs = (_filters(bands) @ power).clamp_(min=1e-10).log10_()
    logs = torch.maximum(logs, logs.max() - DYNAMIC)
    return ((logs + 4) / 4).T.contiguous()


@cache
def _filters(bands: int) -> Tensor:
    """Triangles of equal area on Slaney's mel scale (Auditory Toolbox, 1998): fp32 [bands, bins].

    The scale is linear up to 1 kHz, 15 mel, and logarithmic above, 27 mel per factor of 6.4.
    """
    mels = torch.linspace(0, _mel(RATE / 2), bands + 2, dtype=torch.float64)
    above = 1000 * torch.exp((mels - 15) * (math.log(6.4) / 27))
    edges = torch.where(mels < 15, mels * 200 / 3, above)
    bins = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return (triangles * (2 / (edges[2:] - edges[:-2]))[:, None]).float()


def _mel(hertz: float) -> float:
    return 15 + 27 * math.log(hertz / 1000) / math.log(6.4)
