"""What torch does in chosen steps, by its own profiler: a file of operators and kernels per worker.

Rules.
- The profiler is on from the first piece of work on a chosen step until the first on a step that
  cannot begin before the chosen one is over: `lag` steps later, where features may be so old.
- Where one process has several stages, it is on until the last of them is so far.
- A file is in PyTorch's own format. METADATA in it says whose it is, and when the run began, so
  that its times can be told in seconds of the run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from flowengine.runtime.spans import Work

FOLDER = "torch-profiler"
METADATA = "flowengine"


class StepProfiler:
    """Profiles a process; tell it of every piece of work before it is done, and `close` it.

    steps: the ranges of steps to profile. stages: the labels of the stages in this process.
    clock: seconds since the run began.
    """

    def __init__(
        self,
        steps: Sequence[range],
        *,
        run_dir: Path,
        stages: Iterable[str],
        lag: int,
        clock: Callable[[], float],
    ) -> None:
        self._wanted = list(steps)
        self._at = dict.fromkeys(stages, -1)
        self._lag = lag
        self._folder = run_dir / FOLDER
        self._clock = clock
        self._steps = range(0)
        self._profile: Any = None
        self._warm_up()

    def begin(self, stage: str, work: Work) -> None:
        """A stage begins this piece of work; those of evaluations are in no step."""
        if work.held_out:
            return
        self._at[stage] = work.step
        if self._profile is not None and min(self._at.values()) >= self._steps.stop + self._lag:
            self.close()
        if self._profile is None:
            found = next((steps for steps in self._wanted if work.step in steps), None)
            if found is not None:
                self._start(found)

    def close(self) -> None:
        """Ends what is under way, and writes it."""
        if self._profile is None:
            return
        profile, self._profile = self._profile, None
        profile.stop()
        self._folder.mkdir(exist_ok=True)
        whose = "-".join(self._at) if len(self._at) == 1 else "all"
        name = f"{whose}.steps-{self._steps.start}-{self._steps.stop - 1}.json"
        profile.export_chrome_trace(str(self._folder / name))

    def _start(self, steps: range) -> None:
        self._wanted.remove(steps)
        self._steps = steps
        self._profile = _start_profile()
        began_ns = time.time_ns() - int(self._clock() * 1e9)
        known = {"stages": list(self._at), "run_began_ns": began_ns}
        self._profile.add_metadata_json(METADATA, json.dumps(known))

    @staticmethod
    def _warm_up() -> None:
        """The first profile of a process takes 1.5 s to start, which no step is to have."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # It logs every start to stderr.
        _start_profile().stop()


def _start_profile() -> Any:
    activities = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    profile = torch.profiler.profile(activities=activities)
    profile.start()
    return profile
