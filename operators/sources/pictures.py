"""Pictures from encoded bytes: their size from the header, their pixels when wanted.

Nothing is decoded before its size is known to be within bounds.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from flowengine.operators.sources.fit import Fit
from flowengine.operators.sources.records import Blob

if TYPE_CHECKING:
    from PIL import Image

ORIENTATION = 274
"""The EXIF tag; from 5 on, width and height change places."""

TURNS = (
    None,
    None,
    "FLIP_LEFT_RIGHT",
    "ROTATE_180",
    "FLIP_TOP_BOTTOM",
    "TRANSPOSE",
    "ROTATE_270",
    "TRANSVERSE",
    "ROTATE_90",
)
"""What sets a picture upright, by its orientation (EXIF 2.32, tag 274)."""


def read_size(blob: Blob, *, max_pixels: int) -> tuple[int, int]:
    """(width, height) as it is to be looked at, from the header; ValueError for what is no picture
    or has more pixels than `max_pixels`."""
    with _opened(blob, max_pixels) as image:
        width, height = image.size
        return (height, width) if _orientation(image) >= 5 else (width, height)


def read_part(blobs: Sequence[Blob], fit: Fit, *, max_pixels: int) -> Tensor:
    """What a model takes of a picture or some frames: uint8 [height, width, 3], or [items, height,
    width, 3] for tiles and frames. ValueError for what does not decode."""
    parts = [read_pixels(blob, fit, max_pixels=max_pixels) for blob in blobs]
    return torch.stack(parts) if fit.frames else parts[0]


def read_pixels(blob: Blob, fit: Fit, *, max_pixels: int) -> Tensor:
    """uint8 [height, width, 3], scaled as `fit` says; [tiles + 1, height, width, 3] where it is
    cut."""
    from PIL import Image

    filtered = Image.Resampling(fit.resample)
    with _opened(blob, max_pixels) as image:
        turn = TURNS[_orientation(image)]
        upright = image.convert("RGB")
        if turn is not None:
            upright = upright.transpose(Image.Transpose[turn])
        for size in (*fit.via, fit.size):
            if upright.size != size:
                upright = upright.resize(size, filtered)
        pixels = torch.from_numpy(np.array(upright))
        if fit.tiles is None:
            return pixels
        rows, columns = fit.tiles
        width, height = fit.size[0] // columns, fit.size[1] // rows
        tiles = pixels.view(rows, height, columns, width, 3).transpose(1, 2).flatten(0, 1)
        whole = torch.from_numpy(np.array(upright.resize((width, height), filtered)))
        return torch.cat((tiles, whole[None]))


def _orientation(image: Image.Image) -> int:
    """From 1 (upright) to 8. PIL would decode a PNG to look for EXIF data behind its pixels."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    found = image.getexif().get(ORIENTATION, 1)
    return found if found in range(1, 9) else 1


@contextmanager
def _opened(blob: Blob, max_pixels: int) -> Iterator[Image.Image]:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with _stream(blob) as stream, Image.open(stream) as image:
                width, height = image.size
                if width * height > max_pixels:
                    raise ValueError(
                        f"picture '{blob.name}' has {width} x {height} pixels, at most "
                        f"{max_pixels} are decoded; raise max_pixels= if it is what it says"
                    )
                yield image
    except Image.DecompressionBombError as error:
        raise ValueError(f"picture '{blob.name}': {error}") from None
    except UnidentifiedImageError:
        raise ValueError(f"picture '{blob.name}' is in no known format of pictures") from None
    except (OSError, SyntaxError, EOFError) as error:
        raise ValueError(f"picture '{blob.name}' cannot be read: {error}") from None


def _stream(blob: Blob) -> BinaryIO:
    """A whole file is opened, so that a header is all that is read of it; a part of one is read."""
    if blob.data is None and blob.path is not None and blob.size is None:
        return cast(BinaryIO, blob.path.open("rb"))
    return io.BytesIO(blob.read())
