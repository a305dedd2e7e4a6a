"""The values that travel between operators.

A value is a frozen dataclass. Its tensors live in the pool when they are large; everything else
is a small row. Shape letters: T tokens of a sample or pack, N feature rows, n samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

IGNORED = -100
"""The label of a token that is no target (the convention of torch's cross entropy)."""

Media = Tensor | tuple[Tensor, ...]
"""What a sample holds of one modality: one tensor, or several."""


@dataclass(frozen=True)
class Lengths:
    """What is known of a sample before it is decoded.

    tokens: its length in the language model's sequence, media placeholders included.
    targets: how many of its labels are not IGNORED.
    media: feature rows per modality, e.g. {"image": 24}; a modality it lacks is left out or 0.
    sizes: whatever else packs may be limited by, e.g. {"images": 2, "image bytes": 90_000}; the
        same names for all samples of a source.
    """

    tokens: int
    targets: int
    media: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One training sample.

    tokens: int64 [T], with a placeholder id at the place of every feature row.
    labels: int64 [T], aligned with `tokens` (a model predicts labels[t] from tokens[:t]);
        IGNORED where there is no target, and always at t = 0, so that no target crosses samples.
    media: per modality one tensor, or a tuple of several (pictures, clips, ...) in the order of
        their placeholders; each in whatever form its encoder reads.
    note: small facts to carry along, e.g. {"kind": "count"}.
    grids: per modality int64 [items, A], how the feature rows of each item are laid out along A
        axes, e.g. (frames, rows, columns); for models whose positions follow the layout.
    """

    tokens: Tensor
    labels: Tensor
    media: Mapping[str, Media] = field(default_factory=dict)
    note: Mapping[str, str | int | float] = field(default_factory=dict)
    grids: Mapping[str, Tensor] = field(default_factory=dict)

    def items(self, modality: str) -> tuple[Tensor, ...]:
        """The sample's media of one modality, one after the other; empty if it has none."""
        found = self.media.get(modality, ())
        return (found,) if isinstance(found, Tensor) else tuple(found)


@dataclass(frozen=True)
class Features:
    """What an encoder made of one sample: `rows` is [N, ...], in its stage's dtype."""

    modality: str
    rows: Tensor


@dataclass(frozen=True)
class Joined:
    """A sample together with its features, one entry per modality; what a pool gives out."""

    sample: Sample
    features: Mapping[str, Tensor]


@dataclass(frozen=True)
class Pack:
    """Several samples in one sequence: a microbatch.

    ids: the samples' ids, in sequence order.
    tokens, labels, positions: int64 [T]; positions restart at 0 with every sample.
    lengths: tokens per sample, sums to T.
    features: [N, ...] per modality, rows in sequence order. Leaves of the autograd graph, which
        require a gradient where their encoder trains. Valid until the call returns.
    notes: one per sample.
    grids: the samples' grids, [items, A] per modality, items in sequence order.
    """

    ids: tuple[int, ...]
    tokens: Tensor
    labels: Tensor
    positions: Tensor
    lengths: tuple[int, ...]
    features: Mapping[str, Tensor]
    notes: tuple[Mapping[str, str | int | float], ...]
    grids: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Gradients:
    """The gradient of one modality's features in one pack: `rows` has their shape and dtype."""

    modality: str
    rows: Tensor


@dataclass(frozen=True)
class Answer:
    """What the model predicts at a held-out sample's targets: int64 [targets] both."""

    predicted: Tensor
    expected: Tensor
    note: Mapping[str, str | int | float] = field(default_factory=dict)


class Ports:
    """Base for a `process` result with several output ports, one per dataclass field.

    A field that is None emits nothing on its port.
    """


@dataclass(frozen=True)
class Outcome(Ports):
    """The output ports of an objective."""

    gradients: Gradients
    answers: Answer


def join_samples(ids: tuple[int, ...], members: tuple[Joined, ...]) -> Pack:
    """The pack of these samples, in this order; features are concatenated per modality."""
    samples = [member.sample for member in members]
    modalities = sorted({name for member in members for name in member.features})
    return Pack(
        ids=ids,
        tokens=torch.cat([sample.tokens for sample in samples]),
        labels=torch.cat([sample.labels for sample in samples]),
        positions=torch.cat([torch.arange(len(sample.tokens)) for sample in samples]),
        lengths=tuple(len(sample.tokens) for sample in samples),
        features={
            name: torch.cat([m.features[name] for m in members if name in m.features])
            for name in modalities
        },
        notes=tuple(sample.note for sample in samples),
        grids={
            name: torch.cat([s.grids[name] for s in samples if name in s.grids])
            for name in sorted({name for sample in samples for name in sample.grids})
        },
    )
