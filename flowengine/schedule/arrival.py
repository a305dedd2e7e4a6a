"""Packs without a scheduler: samples in the order in which they come."""

from __future__ import annotations

from collections.abc import Sequence


def fill_in_order(tokens: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """A new pack whenever the next sample does not fit the last one; ids ascend. A sample longer
    than a pack has one of its own."""
    packs: list[list[int]] = []
    room = -1
    for index, length in enumerate(tokens):
        if length > room:
            packs.append([])
            room = max_tokens
        packs[-1].append(index)
        room -= length
    return packs
