"""An operator's ports, read from the signature of `process` (of `read` for a source)."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Union

from flowengine.api import Operator, Ports, Source
from flowengine.errors import GraphError


@dataclass(frozen=True)
class Signature:
    """inputs and outputs: port name -> type, in the order written. A sink has no outputs."""

    inputs: dict[str, type]
    outputs: dict[str, type]


def type_name(kind: Any) -> str:
    """How a person writes this type."""
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def read_signature(what: Operator | Callable[..., Any]) -> Signature:
    """The ports of an operator or function; GraphError where an annotation is missing."""
    if isinstance(what, Source):
        return Signature({}, {"out": _hints(type(what).read, f"{_name(what)}.read")["return"]})
    if isinstance(what, Operator) and not hasattr(type(what), "process"):
        raise GraphError(f"{_name(what)} has no process(self, value: In) -> Out; define it")
    function = type(what).process if isinstance(what, Operator) else what  # type: ignore[attr-defined]
    label = f"{_name(what)}.process" if isinstance(what, Operator) else _name(what)
    hints = _hints(function, label)
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    if not names:
        raise GraphError(f"{label} takes no input; give it one parameter per input stream")
    return Signature({name: hints[name] for name in names}, _outputs(hints["return"]))


def fits(given: Any, wanted: Any) -> bool:
    """Whether a value of type `given` may enter a port of type `wanted`."""
    if wanted in (object, Any) or given == wanted:
        return True
    if typing.get_origin(wanted) in (Union, types.UnionType):
        return any(fits(given, option) for option in typing.get_args(wanted))
    return isinstance(given, type) and isinstance(wanted, type) and issubclass(given, wanted)


def _name(what: Any) -> str:
    return type(what).__name__ if isinstance(what, Operator) else getattr(what, "__name__", "?")


def _hints(function: Callable[..., Any], label: str) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise GraphError(
            f"{label} has an annotation that names '{error.name}', which is not there when the "
            "graph is built; import it at the top of the file, not under TYPE_CHECKING"
        ) from None
    except TypeError:
        raise GraphError(f"{label} is no plain function; wrap it in one with types") from None
    for name in [*inspect.signature(function).parameters, "return"]:
        if name != "self" and name not in hints:
            what = "its result" if name == "return" else f"parameter '{name}'"
            raise GraphError(f"{label} has no type for {what}; edges are checked from annotations")
    return hints


def _outputs(result: Any) -> dict[str, type]:
    result = _without_none(result)
    if result is type(None):
        return {}
    if isinstance(result, type) and issubclass(result, Ports):
        hints = typing.get_type_hints(result)
        return {field.name: _without_none(hints[field.name]) for field in fields(result)}  # type: ignore[arg-type]
    return {"out": result}


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (Union, types.UnionType):
        rest = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        return rest[0] if len(rest) == 1 else kind
    return kind
