"""flowengine check: says what is wrong with a graph, or what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowengine.cli.target import load, takes_graph, user_code

if TYPE_CHECKING:
    from flowengine.graph import Graph


@click.command()
@takes_graph
@click.option("--json", "as_json", is_flag=True, help="The graph as a JSON object.")
def check(target: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Check the graph in GRAPH.py without running it.

    Prints every problem found, with the line of the graph file and what to do.
    """
    graph = load(target, settings)
    from flowengine.graph import check as check_graph

    with user_code(target.partition(":")[0]):
        check_graph(graph)
    if as_json:
        from flowengine.observe.event_json import dump_json
        from flowengine.observe.report import describe_graph

        click.echo(dump_json(describe_graph(graph), indent=2))
    else:
        click.echo(describe(graph))


def describe(graph: Graph) -> str:
    """The graph in a few lines: its step, its pool, and every stage with its types."""
    from flowengine.graph.kind import kind_of
    from flowengine.graph.ports import type_name
    from flowengine.graph.size import format_bytes

    steps = f"{graph.steps} steps" if graph.steps else "until the source ends"
    facts = [f"{graph.step.samples} samples per step", steps, f"staleness {graph.staleness}"]
    facts += [f"pool {format_bytes(pool.capacity)}" for pool in graph.joins]
    lines = [f"ok: {graph.name}: {', '.join(facts)}"]
    width = max(len(stage.name) for stage in graph.stages)
    for stage in graph.stages:
        takes = ", ".join(type_name(kind) for kind in stage.signature.inputs.values())
        gives = ", ".join(type_name(kind) for kind in stage.signature.outputs.values())
        placed = f" x{stage.replicas}" if stage.replicas > 1 else ""
        placed += f"  gang {stage.gang}" if stage.gang.size > 1 else ""
        types = " -> ".join(part for part in (takes, gives) if part)
        lines.append(f"  {stage.name:<{width}}  {kind_of(stage):<9}  {types}{placed}")
    return "\n".join(lines)
