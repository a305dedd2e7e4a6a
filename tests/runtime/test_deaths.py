"""However a run ends, its processes, descriptors and memory are gone."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import small_graph
from fakes_faulty import FaultySource, faulty_graph
from running import run_graph

from flowengine import Graph, check
from flowengine.api import Sample
from flowengine.errors import InterruptedRunError, StageError, WorkerLostError
from flowengine.runtime import execute
from flowengine.runtime.events import Event, StepDone

pytestmark = pytest.mark.slow

SOON_S = 2.0
BEGUN_S = 6.0
"""For the steps that have begun: the source may be more than a hundred small steps ahead."""

ENDLESS = 100_000


class OnStep:
    """An observer that acts once, when step `step` is done."""

    def __init__(self, act: Callable[[], None], step: int) -> None:
        self._act = act
        self._step = step
        self.acted_s = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone) and event.step == self._step:
            self.acted_s = time.perf_counter()
            self._act()


def endless(*, replicas: int = 1) -> Graph:
    """A training graph that would run for hours, with every kind of stage."""
    return small_graph(steps=ENDLESS, replicas=replicas, evaluate=4)


def run_until(
    graph: Graph,
    act: Callable[[], None],
    run_dir: Path,
    *,
    step: int = 0,
    within_s: float = SOON_S,
) -> float:
    """Runs the graph on processes; seconds from `act` after a step to the run's end."""
    observer = OnStep(act, step)
    check(graph)
    try:
        execute(graph, runtime="local", run_dir=run_dir, observe=observer)
    finally:
        took = time.perf_counter() - observer.acted_s
        assert observer.acted_s, f"step {step} was not done"
        assert took < within_s, f"the run ended {took:.1f} s after it was hit"
    return took


def kill(name: str) -> None:
    """Kills the worker of this name."""
    (process,) = [p for p in multiprocessing.active_children() if p.name == name]
    process.kill()


def children() -> set[int]:
    """The processes below this one, all generations."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if stat[0] != "Z":
                parents[int(entry.name)] = int(stat[1])
    found: set[int] = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One run before: the forkserver, which stays, has been started."""
    run_graph(small_graph(steps=1), tmp_path_factory.mktemp("warm"), runtime="local")
    gc.collect()


@pytest.mark.parametrize("worker", ["source", "encoder", "packer", "model", "accuracy"])
def test_a_killed_worker_is_named(worker: str, tmp_path: Path) -> None:
    """A worker that is killed ends the run within two seconds with an error that names its stage,
    the signal and the samples in its hands; nothing is left of the run."""
    before = children(), open_descriptors(), set(os.listdir("/dev/shm"))
    with pytest.raises(WorkerLostError) as caught:
        run_until(endless(), lambda: kill(worker), tmp_path)
    assert re.fullmatch(
        rf"stage '{worker}' \(fakes\.py:\d+\): its worker was killed by SIGKILL while "
        r"(starved|busy|blocked|starting) with (no sample|samples -?\d+(, -?\d+)*) in hand; the "
        r"run has ended; if nobody did, look for the out-of-memory killer in the kernel's log",
        str(caught.value),
    )
    assert (children(), open_descriptors(), set(os.listdir("/dev/shm"))) == before


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_a_random_moment_leaves_nothing(seed: int, tmp_path: Path) -> None:
    """Whichever worker is killed after whichever step, with a disk tier in use: within two seconds
    the run ends with an error that names it, and neither process, descriptor, file nor shared
    memory is left."""
    draw = random.Random(seed)
    worker = draw.choice(["source", "encoder[0]", "encoder[1]", "packer", "model", "accuracy"])
    graph = small_graph(steps=ENDLESS, replicas=2, evaluate=4, capacity="64 KiB")
    graph.joins[0].disk = 2**20
    before = children(), open_descriptors(), set(os.listdir("/dev/shm"))
    with pytest.raises(
        WorkerLostError, match=rf"stage '{re.escape(worker)}' .* SIGKILL .* in hand"
    ):
        run_until(graph, lambda: kill(worker), tmp_path, step=draw.randrange(12))
    assert (children(), open_descriptors(), set(os.listdir("/dev/shm"))) == before
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_killed_replica_is_named(tmp_path: Path) -> None:
    """Of several replicas the killed one is named."""
    with pytest.raises(WorkerLostError, match=r"stage 'encoder\[1\]' .*killed by SIGKILL"):
        run_until(endless(replicas=2), lambda: kill("encoder[1]"), tmp_path)


def test_samples_in_a_dead_workers_hands_are_named(tmp_path: Path) -> None:
    """A worker that dies at work is told with the samples it worked on."""
    graph = faulty_graph(source=DyingSource())
    with pytest.raises(
        WorkerLostError,
        match=r"stage 'source' .*killed by SIGKILL while busy with samples [\d, ]*\b4\b[\d, ]* in "
        "hand",
    ):
        run_graph(graph, tmp_path / "run", runtime="local")


class DyingSource(FaultySource):
    """Kills its own process on sample 4."""

    fault: str = "none"

    def read(self, index: int) -> Sample:
        if index == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


def test_a_worker_that_leaves_is_named(tmp_path: Path) -> None:
    """A worker that ends without a word, as a library may make it, is an error with its code."""
    with pytest.raises(
        WorkerLostError, match=r"stage 'source' .*its worker ended with exit code 7"
    ):
        run_graph(faulty_graph(source=LeavingSource()), tmp_path / "run", runtime="local")


class LeavingSource(FaultySource):
    """Ends its own process on sample 4."""

    fault: str = "none"

    def read(self, index: int) -> Sample:
        if index == 4:
            os._exit(7)
        return super().read(index)


def test_a_death_after_a_signal_is_no_restart(tmp_path: Path) -> None:
    """Who has asked for an end gets one, also if a worker dies before the step's end."""

    def interrupt_and_kill() -> None:
        signal.raise_signal(signal.SIGINT)
        kill("encoder")

    observer = OnStep(interrupt_and_kill, 1)
    graph = endless()
    check(graph)
    with pytest.raises(InterruptedRunError, match=r"interrupted after .* go on with --resume"):
        execute(graph, runtime="local", run_dir=tmp_path, observe=observer, max_restarts=4)


def end_well(run_dir: Path) -> None:
    run_graph(small_graph(steps=2, replicas=2, evaluate=4), run_dir, runtime="local")


def end_with_an_error(run_dir: Path) -> None:
    with pytest.raises(StageError, match="source: cannot read"):
        run_graph(faulty_graph(source=FaultySource()), run_dir, runtime="local")


def end_with_an_interrupt(run_dir: Path) -> None:
    with pytest.raises(InterruptedRunError):
        run_until(
            endless(),
            lambda: signal.raise_signal(signal.SIGINT),
            run_dir,
            within_s=BEGUN_S,
        )


def end_with_a_failing_observer(run_dir: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run_until(endless(), lambda: print(1 // 0), run_dir)


@pytest.mark.parametrize(
    "end", [end_well, end_with_an_error, end_with_an_interrupt, end_with_a_failing_observer]
)
def test_nothing_is_left(end: Callable[[Path], None], tmp_path: Path) -> None:
    """However a run ends, no process, descriptor or name in /dev/shm is left of it, at once and
    without garbage collection."""
    before = children(), open_descriptors(), set(os.listdir("/dev/shm"))
    gc.disable()
    try:
        end(tmp_path / "run")
        assert (children(), open_descriptors(), set(os.listdir("/dev/shm"))) == before
        assert multiprocessing.active_children() == []
    finally:
        gc.enable()


SUPERVISOR = """
import multiprocessing, sys
from pathlib import Path
from fakes import small_graph
from flowengine.runtime import execute
from flowengine.runtime.events import StepDone

def observe(event):
    if isinstance(event, StepDone) and event.step == 0:
        print(*(p.pid for p in multiprocessing.active_children()), flush=True)

if __name__ == "__main__":
    graph = small_graph(steps=100_000, evaluate=4)
    execute(graph, runtime="local", run_dir=Path(sys.argv[1]), observe=observe)
"""


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_workers_do_not_outlive_their_supervisor(tmp_path: Path) -> None:
    """When the supervisor is killed, all of its workers are gone within two seconds."""
    script = tmp_path / "supervisor.py"
    script.write_text(SUPERVISOR)
    supervisor = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert supervisor.stdout is not None
    pids = [int(pid) for pid in supervisor.stdout.readline().split()]
    assert len(pids) == 5
    supervisor.kill()
    deadline = time.perf_counter() + SOON_S
    while any(lives(pid) for pid in pids) and time.perf_counter() < deadline:
        os.sched_yield()
    assert [pid for pid in pids if lives(pid)] == []
    supervisor.communicate(timeout=10)
    assert supervisor.returncode == -signal.SIGKILL
