"""An encoder of one's own: a new modality is a module, how samples are batched, and a forward."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flowengine import Graph, Step, run
from flowengine.api import AdamW, Encoder, GradientReturn, Lengths, Sample, Source
from flowengine.operators.language import LanguageModel
from flowengine.operators.packing import CostPacker


class SeriesEncoder(Encoder[nn.Sequential, Tensor]):
    """A time series, 16 values to a feature row."""

    modality = "series"
    width: int = 32

    def feature_shape(self) -> tuple[int, ...]:
        return (self.width,)

    def build(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, self.width))

    def batch(self, media: Sequence[Tensor]) -> Tensor:
        return torch.cat([series.view(-1, 16) for series in media])

    def forward(self, module: nn.Sequential, batch: Tensor) -> Tensor:
        rows: Tensor = module(batch)
        return rows


class Waves(Source[Sample]):
    """Sines of one of three frequencies: 0 is the placeholder, 1 the question, 2 to 4 answers."""

    def lengths(self, index: int) -> Lengths:
        rows = 2 + index % 3
        return Lengths(tokens=rows + 2, targets=1, media={"series": rows})

    def read(self, index: int) -> Sample:
        rows, answer = 2 + index % 3, 2 + index * 7 % 3
        time = torch.arange(16.0 * rows) + index
        tokens = torch.tensor([0] * rows + [1, answer])
        labels = torch.tensor([-100] * (rows + 1) + [answer])
        return Sample(tokens, labels, media={"series": torch.sin(time * 0.4 * answer)})


def build(*, steps: int = 40) -> Graph:
    adam = AdamW(lr=3e-3)
    graph = Graph("waves", step=Step(samples=32), steps=steps, clip_norm=1.0)
    waves = graph.add(Waves())
    features = graph.add(SeriesEncoder(), waves, optimizer=adam)
    pooled = graph.pool(waves, features, capacity="16 MiB")
    packs = graph.add(CostPacker(max_tokens=128), pooled)
    language = LanguageModel(vocabulary=5, width=32, depth=1, placeholders={"series": 0})
    model = graph.add(language, packs, optimizer=adam)
    graph.feedback(GradientReturn(), model["gradients"], to=features)
    return graph


if __name__ == "__main__":
    losses = run(build(), runtime="inline")["losses"]
    print(f"loss {losses[0]:.3f} at the start, {losses[-1]:.3f} after {len(losses)} steps")
