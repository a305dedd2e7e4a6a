"""Qwen2.5-VL (arXiv 2502.13923) and Qwen3-VL (arXiv 2511.21631).

Pictures of any size; M-RoPE; Qwen3-VL's deepstack (arXiv 2406.04334) adds maps from inner layers
of the encoder to the first layers of the language model, so a feature row there is [1 + K, C]: the
row itself, and K maps of it.

Shape letters: P patches, N rows, C channels, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from flowengine.api import Pack, Sample
from flowengine.operators.hf import mrope
from flowengine.operators.hf.family import Family, check_picture, lengths_for
from flowengine.operators.hf.skeleton import Part
from flowengine.operators.sources.fit import Fit, scaled

MIN_PIXELS, MAX_PIXELS = 56 * 56, 28 * 28 * 1280
"""Qwen2-VL's bounds on a picture, where preprocessor_config.json gives none."""


FPS = 2
"""Frames per second that clips are taken to have: what Qwen's processors sample."""


@dataclass(frozen=True)
class Patches:
    """pixels: fp32 [P, channels * frames * patch * patch]. grids: int64 [items, 3], in patches."""

    pixels: Tensor
    grids: Tensor


class Qwen(Family):
    """Both generations; what differs between them follows from the configuration."""

    vision: ClassVar[Part] = Part(("model.visual",), ("model.language_model", "lm_head"))
    language: ClassVar[Part] = Part(("model.language_model", "lm_head"), ("model.visual",))
    text: ClassVar[str] = "model.language_model"

    @property
    def deep(self) -> int:
        """How many deepstack maps there are."""
        return len(getattr(self.config.vision_config, "deepstack_visual_indexes", ()))

    @property
    def placeholders(self) -> tuple[int, ...]:
        return (int(self.config.image_token_id), int(self.config.video_token_id))

    def feature_shape(self) -> tuple[int, ...]:
        return (1 + self.deep, self.width) if self.deep else (self.width,)

    def fit(self, width: int, height: int) -> Fit:
        """Qwen2-VL's rule: sides are multiples of a cell, the area is within bounds, the aspect
        ratio is nearly kept."""
        vision = self.config.vision_config
        cell = vision.patch_size * vision.spatial_merge_size
        size = self.preprocessing.get("size", {})
        least = self.preprocessing.get("min_pixels") or size.get("shortest_edge") or MIN_PIXELS
        most = self.preprocessing.get("max_pixels") or size.get("longest_edge") or MAX_PIXELS
        h, w = scaled(height, width, cell=cell, least=least, most=most)
        rows, columns = h // cell, w // cell
        image = self.placeholders[0]
        start, end = self.config.vision_start_token_id, self.config.vision_end_token_id
        return Fit((w, h), (1, rows, columns), (start, *[image] * (rows * columns), end))

    def fit_clip(self, width: int, height: int, frames: int) -> tuple[Fit, ...]:
        """Qwen2.5-VL: one part, its frames in pairs. Qwen3-VL: every pair is a part, with its time
        in words before it. Frames are two per second, each within a picture's bounds."""
        one = self.fit(width, height)
        rows, columns = one.grid[1:]
        clip = [self.placeholders[1]] * (rows * columns)
        start, end = one.tokens[0], one.tokens[-1]
        span = self.config.vision_config.temporal_patch_size
        spans = -(-frames // span)
        if self._turns_with_time:
            tokens = (start, *clip * spans, end)
            return (replace(one, grid=(spans, rows, columns), tokens=tokens, frames=frames),)
        parts = []
        for number in range(spans):
            first, last = number * span, min((number + 1) * span, frames) - 1
            seconds = (first + last) / 2 / FPS
            told = self.words(f"<{seconds:.1f} seconds>", wanted_for="times of frames")
            count = last - first + 1
            parts.append(replace(one, tokens=(*told, start, *clip, end), frames=count))
        return tuple(parts)

    @property
    def _turns_with_time(self) -> bool:
        """Whether positions follow a clip's time; else words before its frames say it."""
        return hasattr(self.config.vision_config, "tokens_per_second")

    def batch(self, media: Sequence[Tensor]) -> Patches:
        parts = [self._patches(picture) for picture in media]
        return Patches(
            torch.cat([pixels for pixels, _ in parts]),
            torch.tensor([grid for _, grid in parts], dtype=torch.long),
        )

    def encode(self, model: Any, batch: Patches) -> Tensor:
        out = model.model.visual(batch.pixels.to(model.dtype), grid_thw=batch.grids)
        rows: Tensor = out.pooler_output
        return torch.stack((rows, *out.deepstack_features), dim=1) if self.deep else rows

    def embedded(self, rows: Tensor) -> Tensor:
        return rows[:, 0] if self.deep else rows

    def read(self, model: Any, x_TC: Tensor, pack: Pack, places: Tensor) -> Tensor:
        extra: dict[str, Any] = {}
        rows = pack.features.get("image")
        if self.deep and rows is not None and len(rows):
            seen = torch.zeros(len(x_TC), dtype=torch.bool, device=x_TC.device)
            seen[places] = True
            extra["visual_pos_masks"] = seen[None]
            extra["deepstack_visual_embeds"] = [m.to(x_TC.dtype) for m in rows[:, 1:].unbind(1)]
        out = model.model.language_model(
            inputs_embeds=x_TC[None],
            position_ids=self._positions(pack),
            use_cache=False,
            **lengths_for(model, pack),
            **extra,
        )
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    def plain_inputs(self, sample: Sample) -> dict[str, Any]:
        image, video = self.placeholders
        kinds = (sample.tokens == image).int() + 2 * (sample.tokens == video).int()
        inputs: dict[str, Any] = {"mm_token_type_ids": kinds[None]}
        clips = self._are_clips(sample)
        for clip, pixels, grid in (
            (False, "pixel_values", "image_grid_thw"),
            (True, "pixel_values_videos", "video_grid_thw"),
        ):
            pairs = zip(sample.items("image"), clips, strict=True)
            items = [item for item, is_clip in pairs if is_clip == clip]
            if items:
                batch = self.batch(items)
                inputs |= {pixels: batch.pixels, grid: batch.grids}
        return inputs

    def _are_clips(self, sample: Sample) -> list[bool]:
        """Whether the item stands at video placeholders, for each of the sample's."""
        grids = sample.grids.get("image", torch.empty(0, 3, dtype=torch.long))
        rows = sample.tokens[torch.isin(sample.tokens, torch.tensor(self.placeholders))]
        starts = grids.prod(1).cumsum(0) - grids.prod(1)
        return (rows[starts] == self.placeholders[1]).tolist()

    def _positions(self, pack: Pack) -> Tensor:
        """[4, 1, T]: the tokens' places in their samples, which keep the samples apart, then
        M-RoPE. Three rows, or none, leak between samples without a word."""
        image, video = self.placeholders
        frame = float(getattr(self.config.vision_config, "tokens_per_second", 1))
        grids = pack.grids.get("image", torch.empty(0, 3, dtype=torch.long))
        if not self._turns_with_time and (grids[:, 0] > 1).any():
            raise ValueError(
                f"an item has {int(grids[:, 0].max())} frames of feature rows; for this model give "
                "each of them as an item of its own, with its time in words before it"
            )
        places = mrope.place(pack.tokens, pack.lengths, grids, intervals={image: 1.0, video: frame})
        return torch.cat((pack.positions[None], places))[:, None].to(pack.tokens.device)

    def _patches(self, picture: Tensor) -> tuple[Tensor, list[int]]:
        """Pixels of a picture's or clip's patches, cell by cell; its grid in patches."""
        vision = self.config.vision_config
        patch, merge, span = (
            vision.patch_size,
            vision.spatial_merge_size,
            vision.temporal_patch_size,
        )
        cell = patch * merge
        fits = picture.shape[-3] % cell == 0 and picture.shape[-2] % cell == 0
        check_picture(picture, sides=f"multiples of {cell}", fits=fits)
        clip = self.normalised(picture).reshape(-1, *picture.shape[-3:])
        clip = torch.cat((clip, clip[-1:].expand(-len(clip) % span, -1, -1, -1)))
        t, h, w = len(clip) // span, clip.shape[1] // patch, clip.shape[2] // patch
        split = clip.view(t, span, h // merge, merge, patch, w // merge, merge, patch, 3)
        pixels = split.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(t * h * w, -1)
        return pixels, [t, h, w]
