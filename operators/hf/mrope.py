"""Multimodal rotary positions of packed samples (M-RoPE, arXiv 2409.12191, section 2.1).

A text token has one position for all three axes; a picture's rows stand on a grid of their own, and
the text after it goes on behind the grid's longer side. Every sample starts at 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def place(
    tokens_T: Tensor, lengths: Sequence[int], grids_I3: Tensor, *, intervals: Mapping[int, float]
) -> Tensor:
    """The positions along time, height and width: int64 [3, T].

    tokens_T: int64, with a placeholder for every feature row. lengths: tokens per sample.
    grids_I3: int64, (frames, rows, columns) in feature rows of every item, in sequence order.
    intervals: the placeholders' ids, and how many positions one frame of theirs lasts.
    Raises ValueError where placeholders and grids do not fit.
    """
    places = torch.empty(3, len(tokens_T), dtype=torch.long)
    tokens, grids = tokens_T.tolist(), iter(grids_I3.tolist())
    at = 0
    for length in lengths:
        end, start = at + length, 0
        while at < end:
            if tokens[at] in intervals:
                t, h, w = _next_grid(grids, tokens[at])
                count = t * h * w
                if tokens[at : min(at + count, end)] != [tokens[at]] * count:
                    raise ValueError(
                        f"a grid of {t} x {h} x {w} feature rows has fewer than {count} "
                        f"placeholders {tokens[at]} in its sample; expected one for each row"
                    )
                places[:, at : at + count] = start + _grid(t, h, w, intervals[tokens[at]])
                at, start = at + count, start + max(h, w)
            else:
                stop = at + 1
                while stop < end and tokens[stop] not in intervals:
                    stop += 1
                places[:, at:stop] = torch.arange(start, start + stop - at)
                at, start = stop, start + stop - at
    left = sum(1 for _ in grids)
    if left:
        raise ValueError(f"{left} grid(s) have no placeholders; expected one for each feature row")
    return places


def _next_grid(grids: object, token: int) -> list[int]:
    grid: list[int] | None = next(grids, None)  # type: ignore[call-overload]
    if grid is None:
        raise ValueError(
            f"there are more placeholders {token} than grids; give Sample.grids, one row "
            "(frames, rows, columns) for each picture or clip"
        )
    return grid


def _grid(t: int, h: int, w: int, interval: float) -> Tensor:
    """Positions of t * h * w rows in raster order, from 0: [3, t * h * w]."""
    frames = (torch.arange(t) * interval).long()
    axes = torch.meshgrid(frames, torch.arange(h), torch.arange(w), indexing="ij")
    return torch.stack(axes).flatten(1)
