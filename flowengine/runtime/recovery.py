"""What a run does when a worker dies: it goes back to the last checkpoint and tries again.

Rules.
- Everything behind the last barrier that is on the disk is trained again, so no sample is lost or
  counted twice; without a checkpoint the run begins anew.
- A sample that a worker dies with twice is left out and recorded as a dead letter. Where the dead
  had a whole pack in hand, its samples get packs of their own first, to find which it is.
- A sample that is trained behind the checkpoint stays so, whoever died with it in hand since.
- A sample that a stage refuses after the plan, where its graph wants such samples left out, is a
  dead letter at once; of a whole pack in hand, its samples get packs of their own first.
- Restarts after deaths are counted, and more than `max_restarts` end the run with the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from flowengine.errors import RefusedSampleError, StageError, WorkerLostError
from flowengine.runtime.start import DeadLetter, Start

ATTEMPTS = 2
"""Deaths of a worker at work on the same samples until something is done about the samples."""


class Recovery:
    """Of one run. restarts: how many there were. newest: finds where to start behind the newest
    checkpoint, None if there is none."""

    def __init__(
        self, start: Start, *, newest: Callable[[], Start | None], max_restarts: int
    ) -> None:
        self.restarts = 0
        self._start = start
        self._newest = newest
        self._max_restarts = max_restarts
        self._deaths: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def go_on(self, error: WorkerLostError | RefusedSampleError) -> Start:
        """Where to go on after this error; raises it, or what it comes to, if that is the end."""
        if isinstance(error, WorkerLostError):
            return self.restart(error)
        return self.leave_out(error)

    def restart(self, lost: WorkerLostError) -> Start:
        """Where to go on after this death; raises it again if there were too many."""
        if self.restarts == self._max_restarts:
            if not self._max_restarts:
                raise lost
            raise WorkerLostError(
                f"{lost} (after {self.restarts} restarts; max_restarts= allows no more)",
                worker=lost.worker,
                samples=lost.samples,
            ) from None
        self.restarts += 1
        self._start = self._judge(lost, self._start)
        return self._go_back()

    def leave_out(self, refused: RefusedSampleError) -> Start:
        """Where to go on without a sample that a stage has refused; StageError if the stage may
        leave out no more, or had no sample in hand."""
        if not refused.samples:
            raise StageError(str(refused)) from None
        if len(refused.samples) > 1:
            suspects = self._start.alone | frozenset(refused.samples)
            self._start = replace(self._start, alone=suspects)
        else:
            letter = DeadLetter(refused.samples[0], refused.stage, refused.reason)
            letters = (*self._start.dead_letters, letter)
            refuse_more(refused.stage, letters, spares=refused.spares, text=str(refused))
            self._start = replace(self._start, dead_letters=letters)
        return self._go_back()

    def _go_back(self) -> Start:
        behind = self._newest()
        if behind is not None:
            letters = behind.dead_letters + tuple(
                letter
                for letter in self._start.dead_letters
                if letter.sample not in behind.left_out and not _is_trained(letter.sample, behind)
            )
            self._start = replace(behind, dead_letters=letters, alone=self._start.alone)
        return self._start

    def _judge(self, lost: WorkerLostError, start: Start) -> Start:
        """The start without the samples that are guilty, and with the suspects alone."""
        samples = lost.samples if lost.at_work else ()
        self._deaths[lost.worker, samples] += 1
        seen_alone = len(samples) == 1 and samples[0] in start.alone
        if not samples or (self._deaths[lost.worker, samples] < ATTEMPTS and not seen_alone):
            return start
        if len(samples) > 1:
            return replace(start, alone=start.alone | frozenset(samples))
        letter = DeadLetter(samples[0], lost.worker, f"the worker died with it: {lost}")
        return replace(start, dead_letters=(*start.dead_letters, letter))


def refuse_more(stage: str, letters: Iterable[DeadLetter], *, spares: float, text: str) -> None:
    """StageError with this text if the stage has left out more samples than it may."""
    count = sum(letter.stage == stage for letter in letters)
    if count > spares:
        raise StageError(
            f"{text}; it is bad sample {count} of '{stage}', bad_samples=Skip(limit={spares:.0f}) "
            "allows no more: look at the table of dead letters, or raise limit="
        )


def _is_trained(sample: int, start: Start) -> bool:
    left_over = start.plans.get("deferred", ())
    return 0 <= sample < start.first_sample and sample not in left_over
