"""Sizes as people write them."""

import pytest

from flowengine.errors import GraphError
from flowengine.graph.size import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("512 MiB", 512 * 2**20),
        ("512mib", 512 * 2**20),
        ("1.5GB", 1_500_000_000),
        (" 2 KiB ", 2048),
        ("1 TiB", 2**40),
    ],
)
def test_sizes(text: int | str, expected: int) -> None:
    """Binary and decimal units, with or without a space, in any case."""
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "5 parsecs", "-1 MiB", "1,5 GB", None, 1.5])
def test_what_is_no_size(text: str) -> None:
    """Anything else is refused, with an example of a size."""
    with pytest.raises(GraphError, match=r"is not a size; write a number of bytes or e\.g\."):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**29, "512 MiB")],
)
def test_formatted(size: int, expected: str) -> None:
    """Sizes are shown with the largest binary unit that fits."""
    assert format_bytes(size) == expected
