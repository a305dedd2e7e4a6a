"""flowengine version: the versions a bug report needs."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version as installed

import click

PACKAGES = ("torch", "pyarrow", "numba")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
def version(as_json: bool) -> None:
    """Print the versions of flowengine and of what it stands on."""
    import flowengine

    versions = {"flowengine": flowengine.__version__, "python": platform.python_version()}
    versions |= {package: installed(package) for package in PACKAGES}
    if as_json:
        click.echo(json.dumps(versions))
    else:
        for name, found in versions.items():
            click.echo(f"{name:<10} {found}")
