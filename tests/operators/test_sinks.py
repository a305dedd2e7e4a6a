"""Accuracy and the answer sheet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flowengine.api import Answer, Context
from flowengine.api.context import Reported
from flowengine.operators.sinks import Accuracy, AnswerSheet
from flowengine.operators.sources import WORDS, DigitCards

Reports = list[tuple[str, Reported]]


@pytest.fixture
def opened(tmp_path: Path) -> tuple[Callable[[], Context], Reports]:
    reports: Reports = []

    def context() -> Context:
        return Context(
            stage="sink",
            replica=0,
            num_replicas=1,
            seed=0,
            run_dir=tmp_path,
            report=lambda name, value: reports.append((name, value)),
        )

    return context, reports


def answer(predicted: list[int], expected: list[int], **note: str | int) -> Answer:
    return Answer(torch.tensor(predicted), torch.tensor(expected), note)


def test_accuracy_counts_by_kind(opened: tuple[Callable[[], Context], Reports]) -> None:
    """All targets must be right; shares are given overall and per kind, once per flush."""
    context, reports = opened
    accuracy = Accuracy()
    accuracy.open(context())
    accuracy.flush()
    for given in (
        answer([1, 2], [1, 2], kind="count"),
        answer([1, 3], [1, 2], kind="count"),
        answer([4], [4], kind="any"),
        answer([4], [4]),
    ):
        accuracy.process(given)
    accuracy.flush()
    accuracy.flush()
    shares: Reported = {"samples": 4, "overall": 0.75, "any": 1.0, "count": 0.5, "other": 1.0}
    assert reports == [("accuracy", shares)]
    accuracy.process(answer([1], [2], kind="any"))
    accuracy.flush()
    assert reports[1] == ("accuracy", {"samples": 1, "overall": 0.0, "any": 0.0})


@pytest.mark.slow
def test_answer_sheet_draws_a_picture(opened: tuple[Callable[[], Context], Reports]) -> None:
    """The first pages' picture lies in the run's folder after a flush with answers."""
    context, _ = opened
    source = DigitCards(split="held-out", questions=1)
    sheet = AnswerSheet(source=source, words=WORDS, columns=2, rows=2)
    sheet.open(context())
    path = context().run_dir / "answers.png"
    sheet.flush()
    assert not path.exists()
    for index in range(6):
        sheet.process(answer([1], [2], kind="digit", index=index))
    sheet.flush()
    assert path.read_bytes().startswith(b"\x89PNG")
