"""Sizes in bytes, as people write them."""

import re

from flowengine.errors import GraphError

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def parse_bytes(size: int | str) -> int:
    """Bytes of "512 MiB", "1.5GB" or a plain number; GraphError for anything else."""
    if isinstance(size, int):
        return size
    if not isinstance(size, str):
        raise GraphError(f"size {size!r} is not a size; write a number of bytes or e.g. '512 MiB'")
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", size)
    if match is None or match[2].lower() not in _UNITS:
        raise GraphError(f"size {size!r} is not a size; write a number of bytes or e.g. '512 MiB'")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def format_bytes(size: int) -> str:
    """The size with a binary unit and at most one decimal."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} B"
