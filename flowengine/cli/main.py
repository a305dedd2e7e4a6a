"""The command group, and how errors become messages and exit codes."""

from __future__ import annotations

from typing import Any

import click

from flowengine.cli.check import check
from flowengine.cli.draw import draw
from flowengine.cli.exits import INTERRUPTED, MEANINGS, exit_code
from flowengine.cli.explain import explain
from flowengine.cli.export import export
from flowengine.cli.inspect import inspect
from flowengine.cli.lineage import lineage
from flowengine.cli.new import new
from flowengine.cli.operators import operators
from flowengine.cli.pack import pack
from flowengine.cli.plan import plan
from flowengine.cli.profile import profile
from flowengine.cli.reading import compare, report, trace
from flowengine.cli.replay import replay
from flowengine.cli.run import run
from flowengine.cli.simulate import simulate
from flowengine.cli.verify import verify
from flowengine.cli.version import version
from flowengine.cli.watch import top
from flowengine.errors import FlowError, GraphError

_EXITS = "\n".join(["\b", "Exit codes:", *(f"  {code:<4} {MEANINGS[code]}" for code in MEANINGS)])


class _Commands(click.Group):
    """Prints errors as `error: ...` on stderr, without a traceback, and exits with their code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FlowError as error:
            click.echo(error_text(error), err=True)
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            click.echo("error: interrupted", err=True)
            ctx.exit(INTERRUPTED)


def error_text(error: FlowError) -> str:
    """`error: ...`; a graph's problems one per line, each with its own `error:`."""
    if isinstance(error, GraphError):
        return "\n".join(f"error: {problem}" for problem in str(error).splitlines())
    return "\n".join([f"error: {error}", *getattr(error, "__notes__", ())])


@click.group(cls=_Commands, epilog=_EXITS, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Train multimodal models as dataflow graphs.

    A graph is a Python file with a function build() that returns a flowengine.Graph.
    """


for command in (
    run,
    check,
    verify,
    draw,
    compare,
    explain,
    export,
    inspect,
    lineage,
    new,
    operators,
    pack,
    replay,
    plan,
    profile,
    report,
    simulate,
    top,
    trace,
    version,
):
    main.add_command(command)
