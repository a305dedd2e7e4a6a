"""A graph with a stage too heavy for the others: whoever opens its report can see which one."""

from pathlib import Path

from flowengine import Graph, Step, run
from flowengine.api import AdamW, GradientReturn
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker
from flowengine.operators.sources import DigitCards
from flowengine.operators.vision import VisionEncoder


def build(*, steps: int = 8, depth: int = 6) -> Graph:
    graph = Graph("unbalanced", step=Step(samples=16), steps=steps, clip_norm=1.0)
    pages = graph.add(DigitCards())
    encoder = VisionEncoder(width=64, depth=depth, output=32)
    features = graph.add(encoder, pages, optimizer=AdamW(lr=1e-3))
    pooled = graph.pool(pages, features, capacity="64 MiB")
    packs = graph.add(CostPacker(max_tokens=256), pooled)
    language = LanguageModel(vocabulary=DigitCards.vocabulary, width=32, depth=1, heads=2, groups=1)
    model = graph.add(language, packs, optimizer=AdamW(lr=1e-3))
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    return graph


if __name__ == "__main__":
    report = run(build())
    print(f"open {Path(report['run_dir']) / 'report.html'} and look for the bottleneck")
