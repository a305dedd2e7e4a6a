"""A picture of held-out pages with what was asked, what the model said and what was right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from flowengine.api import Answer, Context, Operator, Sample, Source

RIGHT, WRONG = "#1a7f37", "#cf222e"


class AnswerSheet(Operator):
    """Draws the first held-out pages with question and answer: a PNG in the run's folder, of the
    latest evaluation.

    source: where the answers' samples come from; a sample is read again to show its picture. Its
        notes must hold its "index", its media an "image": uint8 [H, W, 3].
    words: the word of every token id. hidden: the ids that no question shows, such as placeholders.
    """

    source: Source[Sample]
    words: Sequence[str]
    hidden: Sequence[int] = (0,)
    columns: int = 6
    rows: int = 3
    file: str = "answers.png"
    _answers: list[Answer] = field(default_factory=list, init=False, repr=False)

    def open(self, context: Context) -> None:
        self._path = context.run_dir / self.file

    def process(self, answer: Answer) -> None:
        if "index" in answer.note:
            self._answers.append(answer)

    def flush(self) -> None:
        shown = sorted(self._answers, key=lambda answer: int(answer.note["index"]))
        self._answers.clear()
        if shown:
            self._draw(shown[: self.columns * self.rows], path=self._path)

    def _draw(self, answers: Sequence[Answer], *, path: Path) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        rows = -(-len(answers) // self.columns)
        figure = Figure(figsize=(2.35 * self.columns, 2.75 * rows), facecolor="white")
        FigureCanvasAgg(figure)
        grid = figure.subplots(
            rows, self.columns, squeeze=False, gridspec_kw={"hspace": 0.62, "wspace": 0.22}
        )
        figure.subplots_adjust(left=0.02, right=0.98, top=0.93, bottom=0.1 / rows + 0.03)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, answer in zip(grid.flat, answers, strict=False):
            self._draw_page(axes, answer)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)

    def _draw_page(self, axes: Any, answer: Answer) -> None:
        sample = self.source.read(int(answer.note["index"]))
        for picture in (item.numpy() for item in sample.items("image")):
            axes.imshow(picture, interpolation="nearest")
            height, width = picture.shape[:2]
            edge = (-0.5, -0.5, width, height)
            axes.add_patch(_frame(edge))
        question = " ".join(
            self.words[int(token)]
            for token, label in zip(sample.tokens, sample.labels, strict=True)
            if int(label) < 0 and int(token) not in self.hidden
        )
        said, truth = self._text(answer.predicted), self._text(answer.expected)
        axes.set_title(f"{question}?", fontsize=10, pad=7)
        verdict = said if said == truth else f"{said}  (right: {truth})"
        axes.text(
            0.5,
            -0.06,
            verdict,
            transform=axes.transAxes,
            ha="center",
            va="top",
            fontsize=12,
            fontweight="bold",
            color=RIGHT if said == truth else WRONG,
        )

    def _text(self, tokens: Any) -> str:
        return " ".join(self.words[int(token)] for token in tokens)


def _frame(edge: Sequence[float]) -> Any:
    from matplotlib.patches import Rectangle

    left, top, width, height = edge
    return Rectangle((left, top), width, height, fill=False, edgecolor="#888888", clip_on=False)
