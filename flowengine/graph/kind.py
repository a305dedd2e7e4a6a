"""What kind of stage a stage is, in one word, for pictures and reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from flowengine.api import Encoder, Objective, Operator, Packer, Source
from flowengine.graph.description import StageSpec

Kind = Literal["source", "function", "encoder", "packer", "objective", "sink"]


def kind_of(stage: StageSpec) -> Kind:
    """Its kind; what is none of the engine's kinds is a sink or a function, by its outputs."""
    kinds: tuple[tuple[type[Operator], Kind], ...] = (
        (Source, "source"),
        (Encoder, "encoder"),
        (Packer, "packer"),
        (Objective, "objective"),
    )
    for base, kind in kinds:
        if isinstance(stage.what, base):
            return kind
    return "function" if stage.signature.outputs else "sink"


def describe_operator(what: Operator | Callable[..., Any]) -> str:
    """An operator's repr; a function's module and name."""
    if isinstance(what, Operator):
        return repr(what)
    return f"{what.__module__}.{getattr(what, '__qualname__', repr(what))}"
