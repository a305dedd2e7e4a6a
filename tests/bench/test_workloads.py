"""The bench's lengths are the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from workloads import KINDS, checksum, draw_lengths

CHECKSUMS = {
    "text": ("1948bcbe", "a425fc61", "f9f5c7af", "6686ee25"),
    "llava": ("d8cc9ee8", "47d88104", "47d88104", "47d88104"),
    "doc": ("828f390a", "3ea294b1", "7e0194aa", "b5ee62e0"),
    "video": ("9d4deaa1", "c080239a", "af26f2fd", "af26f2fd"),
    "mix": ("60eb0aa3", "c8391c3f", "d61f8ddc", "6b77b60a"),
}


@pytest.mark.parametrize("workload", KINDS)
def test_lengths_have_the_published_checksums(workload: str) -> None:
    """Ten thousand samples of every workload, at seed 0 and four limits, are the published ones."""
    found = tuple(
        checksum(draw_lengths(workload, 10_000, max_tokens=max_tokens, seed=0))
        for max_tokens in (4096, 8192, 16384, 32768)
    )
    assert found == CHECKSUMS[workload]


def test_a_short_draw_begins_a_long_one() -> None:
    """More samples, also beyond one chunk, do not change those before."""
    long = draw_lengths("mix", 70_000, max_tokens=8192, seed=3)
    short = draw_lengths("mix", 100, max_tokens=8192, seed=3)
    np.testing.assert_array_equal(long[:100], short)
    assert len(long) == 70_000
