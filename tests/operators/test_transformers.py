"""The vision encoder and the language model: packing changes nothing but the time it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flowengine.api import Features, Joined, Pack, Sample, join_samples
from flowengine.operators.language import LanguageModel
from flowengine.operators.sources import DigitCards
from flowengine.operators.vision import VisionEncoder

ENCODER = VisionEncoder(width=16, depth=2, heads=2, output=16)
MODEL = LanguageModel(vocabulary=DigitCards.vocabulary, width=16, depth=2, heads=4, groups=2)
SOURCE = DigitCards(median_cells=8, max_cells=24, text_only=0.3)


def build(operator: Any) -> Any:
    torch.manual_seed(0)
    return operator.build().to(torch.float64)


def pack(samples: Sequence[Sample], *, rows: Mapping[int, Tensor]) -> Pack:
    """The samples in this order; `rows` are the features of those that have a picture."""
    joined = [Joined(s, {"image": rows[i]} if i in rows else {}) for i, s in enumerate(samples)]
    return join_samples(tuple(range(len(samples))), tuple(joined))


def random_rows(samples: Sequence[Sample], *, seed: int = 0) -> dict[int, Tensor]:
    """Leaves in place of the encoder's features."""
    generator = torch.Generator().manual_seed(seed)
    counts = [int((sample.tokens == 0).sum()) for sample in samples]
    drawn = [torch.randn(n, 16, dtype=torch.float64, generator=generator) for n in counts]
    return {index: rows.requires_grad_() for index, rows in enumerate(drawn) if len(rows)}


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """With and without pictures."""
    drawn = [SOURCE.read(index) for index in range(8)]
    assert {bool(sample.media) for sample in drawn} == {False, True}
    return drawn


def test_encoding_together_is_encoding_one_by_one(samples: list[Sample]) -> None:
    """Feature rows and the weights' gradients do not depend on which pages share a call."""
    media = [picture for sample in samples for picture in sample.items("image")]
    together, apart = build(ENCODER), build(ENCODER)
    rows = ENCODER.forward(together, ENCODER.batch(media))
    each = [ENCODER.forward(apart, ENCODER.batch([picture])) for picture in media]
    torch.testing.assert_close(rows, torch.cat(each), rtol=0, atol=1e-11)
    rows.square().sum().backward()  # type: ignore[no-untyped-call]
    torch.cat(each).square().sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(gradients(together), gradients(apart), rtol=1e-11, atol=1e-9)


def test_a_row_is_a_cell_in_raster_order() -> None:
    """A mark in one cell of a page without attention changes that cell's row alone."""
    encoder = VisionEncoder(width=16, depth=0, heads=2, output=16)
    module = build(encoder)
    page = torch.full((48, 80, 3), 240, dtype=torch.uint8)
    marked = page.clone()
    marked[16:32, 48:64] = 20
    rows, other = (encoder.forward(module, encoder.batch([x])) for x in (page, marked))
    assert (rows != other).any(-1).nonzero()[:, 0].tolist() == [1 * 5 + 3]


def test_a_flat_page_has_modest_gradients() -> None:
    """A page of one shade, of whatever shade, gives finite rows and modest gradients."""
    module = build(ENCODER)
    for shade in (0, 199, 200, 201, 255):
        page = torch.full((32, 32, 3), shade, dtype=torch.uint8)
        rows = ENCODER.forward(module, ENCODER.batch([page]))
        rows.sum().backward()  # type: ignore[no-untyped-call]
        assert rows.isfinite().all()
        assert all(grad.abs().max() < 1e3 for grad in gradients(module).values())
        module.zero_grad()


def test_a_picture_must_fill_its_cells() -> None:
    """A side that is no multiple of a cell is refused."""
    with pytest.raises(ValueError, match="a picture has 16 x 20 pixels"):
        ENCODER.batch([torch.zeros(16, 20, 3, dtype=torch.uint8)])


def test_a_pack_is_its_samples_one_by_one(samples: list[Sample]) -> None:
    """The loss, the features' gradients and the weights' gradients of a pack are the sums and the
    pieces of the single samples'."""
    together, apart = build(MODEL), build(MODEL)
    rows, same = random_rows(samples), random_rows(samples)
    loss = MODEL.loss(together, pack(samples, rows=rows))
    loss.backward()  # type: ignore[no-untyped-call]
    singles = [
        MODEL.loss(apart, pack([sample], rows={0: same[i]} if i in same else {}))
        for i, sample in enumerate(samples)
    ]
    torch.stack(singles).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss, torch.stack(singles).sum(), rtol=0, atol=1e-11)
    torch.testing.assert_close(gradients(together), gradients(apart), rtol=0, atol=1e-11)
    for index, row in rows.items():
        torch.testing.assert_close(row.grad, same[index].grad, rtol=0, atol=1e-11)


def test_packed_samples_do_not_see_each_other(samples: list[Sample]) -> None:
    """Other features in one sample change no bit of its neighbours' gradients."""
    module = build(MODEL)
    changed = next(index for index, sample in enumerate(samples[2:], 2) if sample.media)
    found = []
    for seed in (0, 1):
        rows = random_rows(samples)
        rows[changed] = random_rows(samples, seed=seed)[changed]
        MODEL.loss(module, pack(samples, rows=rows)).backward()  # type: ignore[no-untyped-call]
        found.append({index: row.grad for index, row in rows.items()})
    for index in found[0]:
        one, other = found[0][index], found[1][index]
        assert one is not None
        assert other is not None
        assert torch.equal(one, other) == (index != changed)


@pytest.mark.parametrize("empty", [False, True], ids=["none", "no rows"])
def test_a_pack_may_be_all_text(empty: bool) -> None:
    """Without pictures a loss needs no features, and takes a modality with no rows."""
    source = DigitCards(text_only=1.0)
    texts = [source.read(index) for index in range(3)]
    plain = pack(texts, rows={})
    none = torch.empty(0, 16, dtype=torch.float64, requires_grad=True)
    given = pack(texts, rows={0: none}) if empty else plain
    module = build(MODEL)
    loss = MODEL.loss(module, given)
    assert torch.equal(loss, MODEL.loss(module, plain))
    loss.backward()  # type: ignore[no-untyped-call]
    assert not empty or none.grad is not None


def test_loss_is_the_sum_over_the_targets(samples: list[Sample]) -> None:
    """The loss is minus the log probability of every label, and float32 weights give float32."""
    module = build(MODEL)
    whole = pack(samples, rows=random_rows(samples))
    targets = (whole.labels >= 0).nonzero()[:, 0]
    scores = module(whole, MODEL.placeholders, targets).log_softmax(-1)
    wanted = -scores.gather(1, whole.labels[targets, None]).sum()
    torch.testing.assert_close(MODEL.loss(module, whole), wanted, rtol=0, atol=1e-11)
    assert MODEL.loss(module.float(), whole).dtype == torch.float32


@torch.no_grad()
def test_answers_are_per_sample(samples: list[Sample]) -> None:
    """A pack gives one answer per sample, in order, with its own targets and note."""
    module = build(MODEL)
    rows = random_rows(samples)
    answers = MODEL.answers(module, pack(samples, rows=rows))
    for index, (answer, sample) in enumerate(zip(answers, samples, strict=True)):
        own = {0: rows[index]} if index in rows else {}
        (alone,) = MODEL.answers(module, pack([sample], rows=own))
        assert torch.equal(answer.expected, sample.labels[sample.labels >= 0])
        assert torch.equal(answer.predicted, alone.predicted)
        assert answer.note == sample.note


def test_gradients_reach_the_pixels_through_a_cut(samples: list[Sample]) -> None:
    """Features handed over as leaves, and their gradients back, train the encoder as one autograd
    graph does."""
    pictured = [sample for sample in samples if sample.media]
    counts = [int((sample.tokens == 0).sum()) for sample in pictured]
    spans = list(pairwise(accumulate(counts, initial=0)))
    found = []
    for cut in (False, True):
        encoder, model = build(ENCODER), build(MODEL)
        rows = ENCODER.forward(
            encoder, ENCODER.batch([p for s in pictured for p in s.items("image")])
        )
        given = Features("image", rows.detach().requires_grad_() if cut else rows).rows
        parts = {i: given[start:stop] for i, (start, stop) in enumerate(spans)}
        MODEL.loss(model, pack(pictured, rows=parts)).backward()  # type: ignore[no-untyped-call]
        if cut:
            rows.backward(given.grad)  # type: ignore[no-untyped-call]
        found.append(gradients(encoder) | gradients(model))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-11)
