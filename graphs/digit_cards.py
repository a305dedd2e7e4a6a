"""Questions about coloured cards with handwritten digits, trained from pixels in minutes on a CPU.

flowengine run flowengine.graphs.digit_cards steps=300 seed=0
"""

from __future__ import annotations

from flowengine import Graph, Step
from flowengine.api import AdamW, Cosine, GradientReturn
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker
from flowengine.operators.sinks import Accuracy
from flowengine.operators.sources import DigitCards
from flowengine.operators.vision import VisionEncoder


def build(
    *,
    steps: int = 300,
    samples: int = 64,
    seed: int = 0,
    staleness: int = 0,
    replicas: int = 1,
    lr: float = 2e-3,
    max_tokens: int = 1024,
    evaluate_every: int = 0,
    evaluate_samples: int = 512,
) -> Graph:
    """A vision encoder and a language model, trained together."""
    optimizer = AdamW(lr=lr, schedule=Cosine(steps=steps, warmup=20, floor=0.05))
    graph = Graph(
        "digit_cards",
        step=Step(samples=samples),
        steps=steps,
        seed=seed,
        staleness=staleness,
        clip_norm=1.0,
    )
    pages = graph.add(DigitCards(seed=seed))
    features = graph.add(VisionEncoder(), pages, optimizer=optimizer, replicas=replicas)
    pooled = graph.pool(pages, features, capacity="256 MiB")
    packs = graph.add(CostPacker(max_tokens=max_tokens), pooled)
    model = graph.add(
        LanguageModel(vocabulary=DigitCards.vocabulary), packs, optimizer=optimizer
    )
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    graph.evaluate(
        DigitCards(seed=seed, split="held-out", questions=1),
        through=pages,
        samples=evaluate_samples,
        every=evaluate_every,
    )
    graph.add(Accuracy(), model["answers"])
    return graph
