"""flowengine draw: the graph as a picture or as Mermaid text."""

from __future__ import annotations

from pathlib import Path

import click

from flowengine.cli.target import load, takes_graph


@click.command()
@takes_graph
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file named *.svg, *.png or *.mmd.  [default: Mermaid text on stdout]",
)
def draw(target: str, settings: tuple[str, ...], output: Path | None) -> None:
    """Draw the graph in GRAPH.py, also one that check refuses."""
    if output is not None and output.suffix not in (".svg", ".png", ".mmd"):
        raise click.BadParameter(f"{output}: expected *.svg, *.png or *.mmd", param_hint="--output")
    graph = load(target, settings)
    from flowengine.graph import draw_mermaid

    if output is None:
        click.echo(draw_mermaid(graph), nl=False)
    elif output.suffix == ".mmd":
        output.write_text(draw_mermaid(graph), encoding="utf-8")
    else:
        from flowengine.observe import draw_picture, sketch_graph

        draw_picture(sketch_graph(graph), output)
