"""flowengine new: writes a skeleton."""

from __future__ import annotations

import re
from pathlib import Path

import click

from flowengine.cli.skeletons import SKELETONS


@click.group()
def new() -> None:
    """Write a skeleton that works, to change into your own."""


@new.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(sorted(SKELETONS)), default="encoder", show_default=True)
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=".",
    help="The directory to write to.  [default: this one]",
)
def operator(name: str, kind: str, to: Path) -> None:
    """Write an operator named NAME, and a test that holds it against the rules of its kind.

    NAME is the class's, such as SeriesEncoder; the files are series_encoder.py and
    test_series_encoder.py.
    """
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise click.BadParameter(
            f"{name!r}: expected a class name such as SeriesEncoder", param_hint="NAME"
        )
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    texts = dict(zip((f"{module}.py", f"test_{module}.py"), SKELETONS[kind], strict=True))
    for file in texts:
        if (to / file).exists():
            raise click.BadParameter(f"{to / file}: exists", param_hint="NAME")
    for file, text in texts.items():
        filled = text.replace("from module import", f"from {module} import")
        filled = filled.replace("Name", name).replace("test_name_", f"test_{module}_")
        (to / file).write_text(filled, encoding="utf-8")
        click.echo(str(to / file))
