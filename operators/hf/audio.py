"""The encoder of a pretrained Whisper model (arXiv 2212.04356), as ears for a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flowengine.api import Encoder
from flowengine.operators.audio import log_mel, num_frames
from flowengine.operators.hf.checkpoint import read_config
from flowengine.operators.hf.skeleton import Part, load_part

ENCODER = Part(own=("encoder",), others=("decoder",))


@dataclass(frozen=True)
class Spectra:
    """mels: fp32 [clips, bands, frames], each clip padded with silence to the model's length.
    rows: feature rows of every clip."""

    mels: Tensor
    rows: tuple[int, ...]


class Ears(nn.Module):
    """Whisper's encoder and a projector of its own, which is new: every `stack` of the encoder's
    frames side by side, to `output` channels in two layers."""

    def __init__(self, whisper: Any, *, stack: int, output: int) -> None:
        super().__init__()
        self.whisper = whisper
        width = whisper.config.d_model
        self.projector = nn.Sequential(
            nn.Linear(stack * width, output), nn.GELU(), nn.Linear(output, output)
        )


class PretrainedAudio(Encoder[Ears, Spectra]):
    """Sound, floats [num_samples] at 16 kHz, to one feature row per `stack` * 20 ms.

    checkpoint: a local directory of a Whisper model; its encoder alone is loaded. output: the
    language model's width. A clip is at most as long as the model hears, 30 seconds for Whisper.
    train_encoder: False trains the projector alone.
    """

    checkpoint: str
    output: int
    stack: int = 4
    train_encoder: bool = True
    modality: ClassVar[str] = "audio"

    def num_rows(self, num_samples: int) -> int:
        """The feature rows of a clip of so many samples."""
        return -(-num_frames(num_samples) // (2 * self.stack))

    def feature_shape(self) -> tuple[int, ...]:
        return (self.output,)

    def build(self) -> Ears:
        from transformers import AutoModel

        whisper, _ = load_part(self.checkpoint, ENCODER, model_class=AutoModel)
        for name, parameter in whisper.named_parameters():
            fixed = name == "encoder.embed_positions.weight"  # Sinusoids, never trained.
            parameter.requires_grad_(self.train_encoder and not fixed)
        return Ears(whisper, stack=self.stack, output=self.output)

    def batch(self, media: Sequence[Tensor]) -> Spectra:
        config = read_config(self.checkpoint)
        most = 2 * config.max_source_positions
        mels = torch.empty(len(media), config.num_mel_bins, most)
        for clip, mel in zip(media, mels, strict=True):
            frames = num_frames(len(clip))
            if frames > most:
                raise ValueError(
                    f"a clip has {frames} frames of 10 ms; this model hears {most} at most: cut it"
                )
            silence = torch.zeros(most * 160 - len(clip))
            mel.copy_(log_mel(torch.cat((clip.float(), silence)), bands=len(mel)).T)
        return Spectra(mels, tuple(self.num_rows(len(clip)) for clip in media))

    def forward(self, module: Ears, batch: Spectra) -> Tensor:
        dtype = module.whisper.dtype
        heard = module.whisper.encoder(batch.mels.to(dtype)).last_hidden_state
        missing = -heard.shape[1] % self.stack
        padded = nn.functional.pad(heard, (0, 0, 0, missing))
        stacked = padded.reshape(len(heard), -1, self.stack * heard.shape[2])
        kept = [clip[:rows] for clip, rows in zip(stacked, batch.rows, strict=True)]
        rows: Tensor = module.projector(torch.cat(kept))
        return rows
