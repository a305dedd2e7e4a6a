"""flowengine top: watches a run from outside."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowengine.cli.target import takes_run

if TYPE_CHECKING:
    from flowengine.observe.follow import Follower
    from flowengine.observe.progress import Screen

LOOK_S = 0.5


@click.command()
@takes_run
@click.option("--json", "as_json", is_flag=True, help="What is known now, as a JSON object.")
@click.option("--once", is_flag=True, help="One look, then end.  [default without a terminal]")
def top(run_dir: Path, as_json: bool, once: bool) -> None:
    """Watch the run in directory RUN, whoever started it.

    Reads the files of the directory and nothing else: it cannot disturb the run.
    """
    from flowengine.observe.event_json import dump_json
    from flowengine.observe.follow import Follower
    from flowengine.observe.progress import Screen
    from flowengine.observe.view import draw_view, summary_lines

    follower = Follower(run_dir)
    follower.look()
    if as_json:
        click.echo(dump_json(follower.snapshot()))
        return
    console = Screen(highlight=False)
    if console.is_terminal and not once:
        _watch(follower, console)
    elif not follower.is_over:
        console.print(draw_view(follower.tally))
    if follower.is_over:
        lines = summary_lines(follower.tally, run_dir)
        click.echo("\n".join([f"this run is over: {follower.state}", *lines[1:]]))


def _watch(follower: Follower, console: Screen) -> None:
    """Draws until the run is over, or until Ctrl-C."""
    from rich.live import Live

    from flowengine.observe.view import draw_view

    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not follower.is_over:
            live.update(draw_view(follower.tally), refresh=True)
            time.sleep(LOOK_S)
            follower.look()
