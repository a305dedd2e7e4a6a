"""flowengine draw: the graph as a picture or as Mermaid text."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowengine.cli.target import RUN, load

if TYPE_CHECKING:
    from flowengine.graph import Graph


@click.command()
@click.argument("target", metavar="[GRAPH.py[:NAME]]", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--run", "run_dir", type=RUN, help="Draw a run: stages by their busy time.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file named *.svg, *.png or *.mmd.  [default: Mermaid text on stdout]",
)
@click.option("--json", "as_json", is_flag=True, help="What is drawn, as a JSON object.")
def draw(
    target: str | None,
    settings: tuple[str, ...],
    run_dir: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Draw the graph in GRAPH.py, also one that check refuses; or, with --run, the graph of a run,
    coloured by busy time and with the bottleneck marked."""
    if output is not None and output.suffix not in (".svg", ".png", ".mmd"):
        raise click.BadParameter(f"{output}: expected *.svg, *.png or *.mmd", param_hint="--output")
    if (target is None) == (run_dir is None):
        raise click.UsageError("name either GRAPH.py or --run RUN")
    if as_json and output is not None:
        raise click.UsageError("--json and --output exclude each other")
    if run_dir is not None:
        _draw_run(run_dir, output, as_json=as_json)
        return
    assert target is not None
    graph = load(target, settings)
    if as_json:
        from flowengine.observe import sketch_graph

        click.echo(json.dumps(sketch_graph(graph).to_json(), indent=2))
    else:
        _draw_graph(graph, output)


def _draw_graph(graph: Graph, output: Path | None) -> None:
    from flowengine.observe import draw_picture, sketch_graph
    from flowengine.observe.sketch_mermaid import draw_mermaid

    sketch = sketch_graph(graph)
    if output is None or output.suffix == ".mmd":
        _write(draw_mermaid(sketch), output)
    else:
        draw_picture(sketch, output)


def _draw_run(run_dir: Path, output: Path | None, *, as_json: bool) -> None:
    from flowengine.observe import draw_picture
    from flowengine.observe.bottleneck import describe_verdict
    from flowengine.observe.picture import Heat
    from flowengine.observe.run_files import RunFiles
    from flowengine.observe.sketch_mermaid import draw_mermaid

    files = RunFiles(run_dir)
    shares, verdict = describe_verdict(files)
    heated = Heat({name: each.share("busy") for name, each in shares.items()}, verdict.stage)
    if as_json:
        click.echo(json.dumps({**files.sketch.to_json(), **asdict(heated)}, indent=2))
    elif output is None or output.suffix == ".mmd":
        _write(draw_mermaid(files.sketch, heated=heated), output)
    else:
        draw_picture(files.sketch, output, heated=heated)


def _write(text: str, output: Path | None) -> None:
    """To the file, or to stdout."""
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
