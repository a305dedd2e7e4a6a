"""The operators that are installed: the library's own, and those that packages register.

A package registers an operator in its pyproject.toml:

    [project.entry-points."flowengine.operators"]
    SeriesEncoder = "my_package.series:SeriesEncoder"
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from flowengine.api import Encoder, GradientReturn, Objective, Operator, Packer, Source

GROUP = "flowengine.operators"
KINDS: tuple[tuple[type, str], ...] = (
    (Source, "source"),
    (Encoder, "encoder"),
    (Packer, "packer"),
    (Objective, "objective"),
    (GradientReturn, "feedback"),
)


@dataclass(frozen=True)
class Installed:
    """One operator. kind: "broken" where it cannot be imported; then `summary` says why."""

    name: str
    kind: str
    module: str
    package: str
    summary: str


def find_operators() -> list[Installed]:
    """All of them, the library's own first, each by its name."""
    own = {found.name: found for found in _library()}
    others = {(found.package, found.name): found for found in map(_registered, _entries())}
    return [*(own[name] for name in sorted(own)), *(others[key] for key in sorted(others))]


def _entries() -> Iterator[EntryPoint]:
    yield from entry_points(group=GROUP)


def _library() -> Iterator[Installed]:
    shelves = importlib.import_module("flowengine.operators")
    for shelf in pkgutil.iter_modules(shelves.__path__, f"{shelves.__name__}."):
        module = importlib.import_module(shelf.name)
        for name in getattr(module, "__all__", ()):
            what = getattr(module, name)
            if _is_operator(what):
                yield _describe(what, name, package="flowengine")


def _registered(entry: EntryPoint) -> Installed:
    package = entry.dist.name if entry.dist is not None else "?"
    module = entry.value.partition(":")[0]
    try:
        what = entry.load()
    except Exception as error:
        # Whatever a package raises when imported must not hide the others.
        return Installed(entry.name, "broken", module, package, f"{type(error).__name__}: {error}")
    if not _is_operator(what):
        text = f"{what!r} is no operator class; derive it from flowengine.api.Operator"
        return Installed(entry.name, "broken", module, package, text)
    return _describe(what, entry.name, package=package)


def _is_operator(what: object) -> bool:
    return isinstance(what, type) and issubclass(what, Operator) and not inspect.isabstract(what)


def _with_process(what: type) -> str:
    """A function, or, where `process` gives nothing, a sink."""
    result = inspect.signature(what.process).return_annotation  # type: ignore[attr-defined]
    return "sink" if result in (None, "None") else "function"


def _describe(what: type, name: str, *, package: str) -> Installed:
    kind = next((kind for base, kind in KINDS if issubclass(what, base)), None)
    text = inspect.getdoc(what) or ""
    return Installed(
        name, kind or _with_process(what), what.__module__, package, text.partition("\n\n")[0]
    )
