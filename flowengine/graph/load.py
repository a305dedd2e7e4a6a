"""Loads a graph: `graph.py` or `package.module`, with key=value overrides of its build().

`graph.py:name` is another function than build(), or a Graph.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flowengine.errors import GraphError
from flowengine.graph.graph import Graph


def load_graph(target: str, overrides: Sequence[str] = ()) -> Graph:
    """The graph that `target` builds; GraphError where there is none or a key is unknown."""
    path_text, _, name = target.partition(":")
    module = load_module(Path(path_text)) if _is_path(path_text) else _import(path_text)
    path = Path(str(module.__file__))
    build = getattr(module, name or "build", None)
    if build is None:
        have = [key for key, value in vars(module).items() if isinstance(value, types.FunctionType)]
        raise GraphError(f"{path} defines no '{name or 'build'}'; it has {sorted(have)}")
    if isinstance(build, Graph):
        if overrides:
            raise GraphError(f"{path}: '{name}' is a graph; it takes no {list(overrides)}")
        graph = build
    elif not inspect.isfunction(build):
        raise GraphError(f"{path}: '{name}' is no function that makes a Graph, but {build!r}")
    else:
        graph = build(**_arguments(build, overrides, path))
    if not isinstance(graph, Graph):
        raise GraphError(
            f"{path}: {name or 'build'}() gave {type(graph).__name__}, expected Graph; "
            "end it with `return graph`"
        )
    graph.file = path.resolve()
    return graph


def _is_path(text: str) -> bool:
    return text.endswith(".py") or "/" in text or Path(text).is_file()


def _import(name: str) -> types.ModuleType:
    try:
        found = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        found = None
    if found is None:
        raise GraphError(f"{name}: no such file or module; pass graph.py, or package.module")
    return importlib.import_module(name)


def load_module(path: Path) -> types.ModuleType:
    """Imports a graph file under a name made from its path, the same in every process."""
    path = path.resolve()
    if not path.is_file():
        raise GraphError(f"{path}: no such file")
    name = f"graph_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GraphError(f"{path} is no Python file; name it *.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _arguments(build: Callable[..., Any], overrides: Sequence[str], path: Path) -> dict[str, Any]:
    """The keyword arguments of build() that these settings give."""
    hints = typing.get_type_hints(build)
    parameters = {
        key: parameter
        for key, parameter in inspect.signature(build).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    known = list(parameters)
    arguments: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise GraphError(f"{override!r} is no setting; write key=value")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known) or 'none'}"
            raise GraphError(f"{path.name}: {build.__name__}() has no parameter '{key}'; {hint}")
        arguments[key] = _parse(text, hints.get(key) or _kind(parameters[key].default), key)
    missing = [
        key for key, p in parameters.items() if p.default is p.empty and key not in arguments
    ]
    if missing:
        settings = " ".join(f"{key}=..." for key in missing)
        raise GraphError(f"{path.name}: {build.__name__}() needs a value; add {settings}")
    return arguments


def _kind(default: Any) -> type:
    """The type of a parameter without annotation: its default's."""
    return str if default is inspect.Parameter.empty or default is None else type(default)


def _parse(text: str, kind: Any, key: str) -> Any:
    options = (
        typing.get_args(kind)
        if typing.get_origin(kind) in (typing.Union, types.UnionType)
        else (kind,)
    )
    if type(None) in options and text.lower() in ("none", ""):
        return None
    for option in options:
        if typing.get_origin(option) is typing.Literal:
            for value in typing.get_args(option):
                if text == str(value):
                    return value
            raise GraphError(f"{key}={text!r}: expected one of {list(typing.get_args(option))}")
        if option is bool and text.lower() in ("true", "false", "1", "0", "yes", "no"):
            return text.lower() in ("true", "1", "yes")
        if option in (int, float, str, Path):
            try:
                return option(text)
            except ValueError:
                continue
    raise GraphError(f"{key}={text!r}: expected {getattr(kind, '__name__', kind)}")
