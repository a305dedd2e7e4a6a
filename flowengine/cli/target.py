"""The arguments that name a graph, and how a graph file's own errors are shown."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flowengine.cli.exits import REFUSED
from flowengine.errors import FlowError

if TYPE_CHECKING:
    from flowengine.graph import Graph

F = TypeVar("F", bound=Callable[..., Any])

RUN = click.Path(path_type=Path, file_okay=False, exists=True)
"""The type of an argument that names a run directory."""


def takes_run(command: F) -> F:
    """Adds the argument RUN, as `run_dir`, to a command."""
    return click.argument("run_dir", type=RUN, metavar="RUN")(command)


def takes_graph(command: F) -> F:
    """Adds the arguments TARGET and [KEY=VALUE]... to a command."""
    command = click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")(command)
    return click.argument("target", metavar="GRAPH.py[:NAME]")(command)


def load(target: str, settings: Sequence[str]) -> Graph:
    """The graph that the arguments name; GraphError, or an exit, where there is none."""
    path = target.partition(":")[0]
    if path.endswith(".py") and not Path(path).is_file():
        raise click.BadParameter(f"{path}: no such file", param_hint="GRAPH.py")
    for setting in settings:
        if "=" not in setting:
            raise click.BadParameter(f"{setting!r}: write key=value", param_hint="KEY=VALUE")
    from flowengine.graph import load_graph

    with user_code(path):
        return load_graph(target, settings)


@contextmanager
def user_code(path: str) -> Iterator[None]:
    """Around code of the graph file: its exceptions are printed with file and line, and exit."""
    try:
        yield
    except (FlowError, click.ClickException, click.exceptions.Exit):
        raise
    except Exception as error:
        click.echo(_describe(error, path), err=True)
        raise click.exceptions.Exit(REFUSED) from None


def _describe(error: Exception, path: str) -> str:
    """`error: file:line: ...` and the traceback's frames that are the user's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    what = "".join(traceback.format_exception_only(error)).rstrip()
    if isinstance(error, SyntaxError):
        where = f"{Path(error.filename or path).name}:{error.lineno}"
        return f"error: {where}: {error.msg}\n{what}"
    if not frames:
        return f"error: {path}: {what}"
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return f"error: {where}: {what}\n" + "".join(traceback.format_list(frames)).rstrip()


def _is_users(filename: str) -> bool:
    """Whether this file is neither Python's, nor an installed package's, nor the engine's own."""
    package = Path(__file__).resolve().parents[1]
    path = Path(filename)
    if path.is_relative_to(package):
        return path.relative_to(package).parts[0] in ("graphs", "operators")
    installed = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    return path.is_absolute() and not any(path.is_relative_to(place) for place in installed)
