"""The digit cards: what a sample is, and what its questions mean."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from flowengine.api import IGNORED
from flowengine.operators.sources import DigitCards
from flowengine.operators.sources.digit_cards import (
    CELL,
    COLOURS,
    MAX_CARDS,
    SPLITS,
    WORDS,
    Page,
    draw,
)

SOURCES = {
    "train": DigitCards(),
    "held-out": DigitCards(split="held-out", questions=1),
    "mixed": DigitCards(seed=3, text_only=0.3),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_sample_is_a_function_of_its_index(source: DigitCards) -> None:
    """An equal source gives the same sample again, whatever was read before."""
    first = [source.read(index) for index in range(20)]
    again = DigitCards(
        split=source.split,
        seed=source.seed,
        questions=source.questions,
        text_only=source.text_only,
    )
    for index in reversed(range(20)):
        sample = again.read(index)
        assert torch.equal(sample.tokens, first[index].tokens)
        assert torch.equal(sample.labels, first[index].labels)
        assert sample.note == first[index].note
        assert sample.media.keys() == first[index].media.keys()
        pairs = zip(sample.items("image"), first[index].items("image"), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_seeds_and_splits_give_different_pages() -> None:
    """No page of one seed or split is one of another."""
    sources = [DigitCards(), DigitCards(seed=1), DigitCards(split="held-out")]
    pages = {source.page(index) for source in sources for index in range(100)}
    assert len(pages) == 300


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_lengths_agree_with_the_samples(source: DigitCards) -> None:
    """Tokens, targets and rows are known before the page is drawn."""
    for index in range(100):
        sample, lengths = source.read(index), source.lengths(index)
        assert lengths.tokens == len(sample.tokens) == len(sample.labels)
        assert lengths.targets == int((sample.labels != IGNORED).sum())
        sizes = [picture.shape[0] * picture.shape[1] for picture in sample.items("image")]
        rows = sum(sizes) // CELL**2
        assert lengths.media.get("image", 0) == rows
        assert int((sample.tokens == DigitCards.placeholders["image"]).sum()) == rows


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_labels_are_the_answers(source: DigitCards) -> None:
    """A label is the token at its place, never the first, and a sample has 1 to `questions`."""
    for index in range(100):
        sample = source.read(index)
        places = (sample.labels != IGNORED).nonzero()[:, 0]
        assert 1 <= len(places) <= source.questions
        assert int(places[0]) > 0
        assert torch.equal(sample.labels[places], sample.tokens[places])
        assert int(sample.tokens.max()) < DigitCards.vocabulary == len(set(WORDS))


def test_splits_share_no_scan() -> None:
    """Training and held-out pages show scans of different people's forms."""
    seen = {}
    for split, (first, last) in SPLITS.items():
        source = DigitCards(split=split)  # type: ignore[arg-type]
        seen[split] = {card.scan for index in range(400) for card in source.page(index).cards}
        assert first <= min(seen[split])
        assert max(seen[split]) < last
    assert not seen["train"] & seen["held-out"]


def test_sizes_are_heavy_tailed() -> None:
    """The median page has about 16 cells; some are very small, some very large, some very long."""
    source = DigitCards()
    pages = [source.page(index) for index in range(1000)]
    cells = np.array([page.rows * page.columns for page in pages])
    assert 12 <= np.median(cells) <= 19
    assert cells.min() >= source.min_cells
    assert cells.max() <= source.max_cells
    assert np.percentile(cells, 95) > 4 * np.median(cells)
    aspects = np.array([page.rows / page.columns for page in pages])
    assert (aspects > 4).sum() > 30
    assert (aspects < 1 / 4).sum() > 30


def answer(page: Page, question: str) -> str:
    """The answer, from the cards alone."""
    words = question.split()
    match words:
        case ["which", "digit", "is", colour]:
            return next(str(card.digit) for card in page.cards if card.colour == colour)
        case ["which", "colour", "is", digit]:
            (card,) = [card for card in page.cards if str(card.digit) == digit]
            return card.colour
        case ["how", "many", "cards"]:
            return str(len(page.cards))
        case ["any", "card", colour]:
            return "yes" if colour in {card.colour for card in page.cards} else "no"
        case _:
            return str(int(words[-1]) + 1)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_answers_are_right(source: DigitCards) -> None:
    """Every question has one answer, and it is the one given."""
    for index in range(200):
        page = source.page(index)
        assert 1 <= len(page.cards) <= MAX_CARDS or source.text_only
        assert len({card.colour for card in page.cards}) == len(page.cards)
        assert len({(card.row, card.column) for card in page.cards}) == len(page.cards)
        for _, question, given in page.questions:
            assert given == answer(page, question)


def test_held_out_kinds_are_balanced() -> None:
    """A page's only question is of every kind about equally often, and yes as often as no."""
    source = DigitCards(split="held-out", questions=1)
    asked = [source.page(index).questions[0] for index in range(1500)]
    kinds = Counter(kind for kind, _, _ in asked)
    assert set(kinds) == {"digit", "colour", "count", "any"}
    assert all(300 <= number <= 450 for number in kinds.values())
    answers = Counter(given for kind, _, given in asked if kind == "any")
    assert abs(answers["yes"] - answers["no"]) < 80


def test_cards_are_drawn_where_they_are() -> None:
    """Cells without a card are paper; a card has its colour at most, and ink."""
    page = DigitCards().page(5)
    picture = draw(page)
    assert picture.dtype == np.uint8
    assert picture.shape == (page.rows * CELL, page.columns * CELL, 3)
    cells = picture.reshape(page.rows, CELL, page.columns, CELL, 3).swapaxes(1, 2)
    cards = {(card.row, card.column): card for card in page.cards}
    for row in range(page.rows):
        for column in range(page.columns):
            cell = cells[row, column]
            if card := cards.get((row, column)):
                assert (cell <= np.array(COLOURS[card.colour])).all()
                assert cell.min() < 60
            else:
                assert (cell == page.paper).all()
