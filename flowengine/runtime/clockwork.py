"""Keeps a stage's time by state: busy, blocked on something, or starved of something."""

from __future__ import annotations

import sysconfig
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from flowengine.channel import Kind, Message
from flowengine.errors import (
    CheckpointError,
    FlowError,
    OutOfBudgetError,
    RefusedSampleError,
    SampleError,
    StageError,
)
from flowengine.runtime.spans import SpanLog, Work
from flowengine.runtime.stage import Stage
from flowengine.shortage import describe_shortage

LONGEST = 20_000
"""Characters of an error's text that are told."""

_ROOT = Path(__file__).parents[1]
_ENGINE = tuple(f"{_ROOT / room}/" for room in ("api", "channel", "graph", "pool", "runtime"))
_LIBRARIES = tuple(
    f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


class Clockwork:
    """Runs a stage's pieces of work and books the time between them."""

    def __init__(self, clock: Callable[[], float], *, spans: SpanLog | None = None) -> None:
        """spans: where pieces of work and waits are noted one by one, if they are wanted."""
        self._clock = clock
        self.spans = spans
        self.since_s = clock()
        self.seconds = {"busy": 0.0, "blocked": 0.0, "starved": 0.0}
        self.causes: dict[str, float] = defaultdict(float)
        self._idle_state, self._idle_on = "starved", "its start"
        self._step, self._held_out = 0, False

    def run(self, stage: Stage) -> bool:
        """One `advance` of the stage: its time counts as busy if it did anything, and the time
        before it as whatever the stage then waited for."""
        began = self._clock()
        stage.work_now = None
        with failing(stage):
            moved = stage.advance()
        self._settle(began)
        if moved:
            self._book(stage, began)
        else:
            self._idle_state, self._idle_on = stage.waits.state, stage.waits.on
        return moved

    def handle(self, stage: Stage, sender: int, message: Message) -> None:
        """Delivers a message. What a notice sets going, an optimizer step, counts as busy."""
        if message[0] != Kind.NOTICE or message[1] not in ("reduce", "commit"):
            with failing(stage):
                stage.handle(sender, message)
            return
        began = self._clock()
        stage.work_now = Work("optimizer", message[2])
        with failing(stage):
            stage.handle(sender, message)
        self._settle(began)
        self._book(stage, began)

    def _book(self, stage: Stage, began: float) -> None:
        """Books the time since `began` as busy."""
        self.since_s = self._clock()
        self.seconds["busy"] += self.since_s - began
        work = stage.work_now
        if work is not None:
            self._step, self._held_out = work.step, work.held_out
        if self.spans is not None:
            work = work or Work("other", self._step, self._held_out)
            self.spans.add("busy", work, began, self.since_s)

    def _settle(self, now: float) -> None:
        """Books the time since the last look as idle."""
        idle = now - self.since_s
        if self._idle_state in self.seconds and idle > 0:
            self.seconds[self._idle_state] += idle
            self.causes[f"{self._idle_state}: {self._idle_on}"] += idle
            if self.spans is not None:
                wait = Work(self._idle_on, self._step, self._held_out)
                self.spans.add(self._idle_state, wait, self.since_s, now)
        self.since_s = now


class failing:  # noqa: N801
    """A `with` in which what is raised becomes a StageError that names the stage; what the engine
    tells with an error of its own, of checkpoints, shortages and samples to be left out, stays
    that."""

    __slots__ = ("_how", "_stage")

    def __init__(self, stage: Stage, how: str = "failed") -> None:
        self._stage, self._how = stage, how

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, KeyboardInterrupt | GeneratorExit):
            return
        told = describe_failure(self._stage, error, self._how)
        if isinstance(error, SampleError) and self._stage.spec.spares:
            raise RefusedSampleError(
                told,
                stage=self._stage.spec.name,
                samples=self._stage.in_hand,
                reason=text_of(error),
                spares=self._stage.spec.spares,
            ) from error
        shortage = describe_shortage(error)
        found: FlowError = StageError(told)
        if isinstance(error, CheckpointError | OutOfBudgetError):
            found = type(error)(told)
        elif shortage is not None:
            found = OutOfBudgetError(f"{told}: {shortage}")
        found.samples = self._stage.in_hand
        raise found from error


def close_stage(stage: Stage) -> None:
    """Closes the stage; a StageError, or as `failing` says, if its operator raises."""
    with failing(stage, "failed to close"):
        stage.close()


def describe_failure(stage: Stage, error: BaseException, how: str) -> str:
    """What failed, where in the graph, on which samples, and on which line of the user's code."""
    worker = stage.site.worker
    what = text_of(error) if isinstance(error, FlowError) else name_error(error)
    frame = _users_frame(error)
    where = f" at {Path(frame.filename).name}:{frame.lineno}" if frame else ""
    samples = ", ".join(str(sample) for sample in stage.in_hand[:8])
    more = f" and {len(stage.in_hand) - 8} more" if len(stage.in_hand) > 8 else ""
    hand = f" with samples {samples}{more} in hand" if samples else ""
    return f"stage '{worker.label}' ({worker.stage.line}) {how}{hand}{where}: {what}"


def name_error(error: BaseException) -> str:
    """Its type and text."""
    return f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")


def text_of(error: BaseException) -> str:
    """Its text as UTF-8 can carry it, also where it is very long or cannot say what it is."""
    try:
        text = str(error)
    except Exception as second:
        return f"(its text cannot be had: {type(second).__name__})"
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")


def _users_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of the operator's own code: neither the engine's nor a library's; a
    library's where there is no other."""
    outside = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_ENGINE, "<"))
    ]
    own = [frame for frame in outside if not frame.filename.startswith(_LIBRARIES)]
    frames = own or outside
    return frames[-1] if frames else None
