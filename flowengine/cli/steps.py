"""The type of options that choose steps: numbers and ranges, both ends included."""

from __future__ import annotations

import re

import click


class Steps(click.ParamType):  # type: ignore[type-arg]
    """From "10-12,50" to (range(10, 13), range(50, 51))."""

    name = "STEPS"

    def convert(
        self,
        value: str | tuple[range, ...],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[range, ...]:
        """One range per part."""
        if isinstance(value, tuple):
            return value
        found = []
        for part in value.split(","):
            ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
            if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
                self.fail(f"{part!r}: expected a step, or first-last, as in 10-12,50", param, ctx)
            found.append(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
        return tuple(found)


STEPS = Steps()
