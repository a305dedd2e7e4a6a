"""The graph as Mermaid text."""

from __future__ import annotations

from fakes_described import Eye, Model, Packs, Pages

from flowengine.api import AdamW, GradientReturn
from flowengine.graph import Graph, Step, draw_mermaid


def test_every_stage_and_stream() -> None:
    """Stages with their placing, streams with their types, the pool, and dashed feedback."""
    graph = Graph("docqa", step=Step(samples=8))
    pages = graph.add(Pages())
    features = graph.add(Eye(), pages, optimizer=AdamW(lr=1e-3), replicas=2)
    packs = graph.add(Packs(), graph.pool(pages, features, capacity="512 MiB"))
    model = graph.add(Model(), packs, freeze=True)
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    assert draw_mermaid(graph).splitlines() == [
        "flowchart LR",
        '    pages(["pages<br/>Pages"])',
        '    eye["eye<br/>Eye<br/>2 replicas"]',
        '    packs[/"packs<br/>Packs"/]',
        '    model[["model<br/>Model<br/>frozen"]]',
        '    pool[("pool<br/>512 MiB")]',
        "    pages -->|Sample| pool",
        "    eye -->|Features| pool",
        "    pages -->|Sample| eye",
        "    pool -->|Joined| packs",
        "    packs -->|Pack| model",
        "    model -.->|gradients| eye",
    ]
