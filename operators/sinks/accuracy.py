"""The share of right answers among held-out samples."""

from __future__ import annotations

from collections import Counter

from flowengine.api import Answer, Context, Operator


class Accuracy(Operator):
    """Reports the share of right answers, in all and for each value of one of the samples' notes.

    An answer is right if all its targets are. by: the note's name.
    """

    by: str = "kind"

    def open(self, context: Context) -> None:
        self._report = context.report
        self._asked: Counter[str] = Counter()
        self._right: Counter[str] = Counter()

    def process(self, answer: Answer) -> None:
        right = bool((answer.predicted == answer.expected).all())
        group = str(answer.note.get(self.by, "other"))
        self._asked[group] += 1
        self._right[group] += right

    def flush(self) -> None:
        if not self._asked:
            return
        self._report(
            "accuracy",
            {
                "samples": self._asked.total(),
                "overall": self._right.total() / self._asked.total(),
                **{name: self._right[name] / asked for name, asked in sorted(self._asked.items())},
            },
        )
        self._asked.clear()
        self._right.clear()
