"""Questions about coloured cards with handwritten digits, trained from pixels in minutes on a CPU.

flowengine run graphs/digit_cards.py steps=400 seed=0
"""

from __future__ import annotations

from flowengine import Graph, Step
from flowengine.api import AdamW, Cosine, GradientReturn
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker
from flowengine.operators.sinks import Accuracy, AnswerSheet
from flowengine.operators.sources import WORDS, DigitCards
from flowengine.operators.vision import VisionEncoder


def build(
    *,
    steps: int = 400,
    samples: int = 64,
    seed: int = 0,
    staleness: int = 0,
    replicas: int = 1,
    lr: float = 1e-3,
    max_tokens: int = 1024,
    min_packs: int = 4,
    evaluate_every: int = 0,
    evaluate_samples: int = 512,
) -> Graph:
    """A vision encoder and a language model, trained together."""
    adam = AdamW(lr=lr, schedule=Cosine(steps=steps, warmup=20, floor=0.05))
    graph = Graph(
        "digit_cards",
        step=Step(samples=samples),
        steps=steps,
        seed=seed,
        staleness=staleness,
        clip_norm=1.0,
    )
    pages = graph.add(DigitCards(seed=seed))
    features = graph.add(VisionEncoder(), pages, optimizer=adam, replicas=replicas)
    pooled = graph.pool(pages, features, capacity="256 MiB")
    packs = graph.add(CostPacker(max_tokens=max_tokens, min_packs=min_packs), pooled)
    language = LanguageModel(vocabulary=DigitCards.vocabulary, groups=8)
    model = graph.add(language, packs, optimizer=adam)
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    held_out = DigitCards(seed=seed, split="held-out", questions=1)
    graph.evaluate(held_out, through=pages, samples=evaluate_samples, every=evaluate_every)
    graph.add(Accuracy(), model["answers"])
    graph.add(AnswerSheet(source=held_out, words=WORDS), model["answers"])
    return graph
