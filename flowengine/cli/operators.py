"""flowengine operators: lists what is installed."""

from __future__ import annotations

import dataclasses
import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON, an object per operator.")
def operators(as_json: bool) -> None:
    """List the operators that are installed, the library's own and those of other packages.

    A package registers its operators under the entry-point group flowengine.operators.
    """
    from flowengine.cli.installed import find_operators

    found = find_operators()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
        return
    width = max((len(each.name) for each in found), default=0)
    for each in found:
        summary = " ".join(each.summary.split())
        click.echo(f"{each.name:<{width}}  {each.kind:<9}  {each.module}")
        if summary:
            click.echo(f"{'':<{width}}  {summary}")
