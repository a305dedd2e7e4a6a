"""The graph as Mermaid text."""

from __future__ import annotations

from fakes_described import Eye, Model, Packs, Pages

from flowengine.api import AdamW, GradientReturn
from flowengine.graph import Graph, Step
from flowengine.observe.picture import Heat
from flowengine.observe.sketch import sketch_graph
from flowengine.observe.sketch_mermaid import draw_mermaid


def described() -> Graph:
    graph = Graph("docqa", step=Step(samples=8))
    pages = graph.add(Pages())
    features = graph.add(Eye(), pages, optimizer=AdamW(lr=1e-3), replicas=2)
    packs = graph.add(Packs(), graph.pool(pages, features, capacity="512 MiB"))
    model = graph.add(Model(), packs, freeze=True)
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    return graph


def test_every_stage_and_stream() -> None:
    """Stages with their placing, streams with their types and bounds, the pool, and dashed
    feedback."""
    assert draw_mermaid(sketch_graph(described())).splitlines() == [
        "flowchart LR",
        '    pages(["pages<br/>Pages"])',
        '    eye["eye<br/>Eye<br/>2 replicas"]',
        '    packs[/"packs<br/>Packs"/]',
        '    model[["model<br/>Model<br/>frozen"]]',
        '    pool[("pool<br/>512 MiB")]',
        "    pages -->|Sample| pool",
        "    eye -->|Features| pool",
        "    pages -->|Sample<br/>1024 rows| eye",
        "    pool -->|Joined<br/>1024 rows| packs",
        "    packs -->|Pack<br/>1024 rows| model",
        '    model -.->|"gradients (GradientReturn)"| eye',
    ]


def test_after_a_run() -> None:
    """Stages are coloured by their busy time, and the bottleneck is marked."""
    heated = Heat({"pages": 0.1, "eye": 0.95, "packs": 0.0, "model": 0.5}, "eye")
    lines = draw_mermaid(sketch_graph(described()), heated=heated).splitlines()
    assert '    eye["eye<br/>Eye<br/>2 replicas<br/>95% busy<br/>bottleneck"]' in lines
    assert [line for line in lines if "stroke" in line] == [
        "    style eye fill:#5f9bd8,stroke:#c62828,stroke-width:3px"
    ]
    assert sum(line.startswith("    style") for line in lines) == 5
