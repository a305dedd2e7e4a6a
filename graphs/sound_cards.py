"""Pictures and sound in the same samples: two encoders, one language model.

flowengine run graphs/sound_cards.py steps=300
"""

from __future__ import annotations

from flowengine import Graph, Step
from flowengine.api import AdamW, Cosine, GradientReturn
from flowengine.operators.audio import AudioEncoder
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker
from flowengine.operators.sinks import Accuracy
from flowengine.operators.sources import SoundCards
from flowengine.operators.vision import VisionEncoder


def build(
    *,
    steps: int = 300,
    samples: int = 64,
    seed: int = 0,
    lr: float = 1e-3,
    max_tokens: int = 1024,
    evaluate_samples: int = 512,
) -> Graph:
    """An encoder of pictures, an encoder of sound, and a language model, trained together."""
    adam = AdamW(lr=lr, schedule=Cosine(steps=steps, warmup=20, floor=0.05))
    graph = Graph("sound_cards", step=Step(samples=samples), steps=steps, seed=seed, clip_norm=1.0)
    pages = graph.add(SoundCards(seed=seed))
    seen = graph.add(VisionEncoder(), pages, optimizer=adam)
    heard = graph.add(AudioEncoder(), pages, optimizer=adam)
    pooled = graph.pool(pages, seen, heard, capacity="256 MiB")
    packs = graph.add(CostPacker(max_tokens=max_tokens), pooled)
    language = LanguageModel(
        vocabulary=SoundCards.vocabulary, groups=8, placeholders=SoundCards.placeholders
    )
    model = graph.add(language, packs, optimizer=adam)
    graph.feedback(GradientReturn(), model["gradients"], to=seen)
    graph.feedback(GradientReturn(), model["gradients"], to=heard)
    held_out = SoundCards(seed=seed, split="held-out")
    graph.evaluate(held_out, through=pages, samples=evaluate_samples)
    graph.add(Accuracy(), model["answers"])
    return graph
