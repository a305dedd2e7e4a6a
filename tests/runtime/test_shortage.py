"""What runs out is named, and the last checkpoint is whole."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import small_graph
from fakes_plain import Number, plain_graph
from running import run_graph
from safetensors import SafetensorError

from flowengine import Graph, check, launch
from flowengine.api import Context, Operator
from flowengine.checkpoint import find_checkpoint, open_checkpoint, part
from flowengine.cli.exits import OUT_OF_BUDGET, exit_code
from flowengine.errors import OutOfBudgetError, StageError
from flowengine.observe.record import Recorder
from flowengine.pool import Segment
from flowengine.runtime import Runtime, execute
from flowengine.runtime.events import Event, StepDone
from flowengine.shortage import describe_shortage

RUNTIMES = ["inline", pytest.param("local", marks=pytest.mark.slow)]
FULL = Path("/dev/full")


def kept(*, every: int = 1, **settings: Any) -> Graph:
    graph = small_graph(**settings)
    graph.checkpoint(every=every)
    return graph


def fill_disk(run_dir: Path, file: str) -> Callable[[Event], None]:
    """An observer that makes the disk full for this file of all checkpoints after the first."""

    def observe(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 1:
            for step in range(4, 12):
                partial = run_dir / "checkpoints" / f".step-{step:08d}.partial"
                partial.mkdir(exist_ok=True, parents=True)
                (partial / file).symlink_to(FULL)

    return observe


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("file", [".model.json.part", ".manifest.json.part"])
def test_a_full_disk_is_named(file: str, runtime: Runtime, tmp_path: Path) -> None:
    """The run ends within a step and says what could not be written; the checkpoint before it is
    whole, and a resumed run goes on behind it with the same losses."""
    whole = run_graph(kept(steps=6), tmp_path / "whole")
    run_dir = tmp_path / "run"
    with pytest.raises(OutOfBudgetError, match=r"cannot be written.*the disk is full; free some"):
        execute(kept(steps=200), runtime=runtime, run_dir=run_dir, observe=fill_disk(run_dir, file))
    newest = open_checkpoint(find_checkpoint(run_dir))
    assert 1 <= newest.step < 6
    again = run_graph(kept(steps=6), tmp_path / "again", resume=run_dir)
    assert newest.losses + again.losses == whole.losses


def test_tensors_that_do_not_fit_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors tells of a full disk in an error of its own."""

    def full(*_: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(part, "save_file", full)
    with pytest.raises(OutOfBudgetError, match=r"part of '\w+' cannot be written: .*disk is full"):
        run_graph(kept(steps=2), tmp_path)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_full_disk_of_an_operator_is_named(runtime: Runtime, tmp_path: Path) -> None:
    """What an operator cannot write is told with its stage, as a shortage."""
    graph = plain_graph(sink=WritesToFull())
    with pytest.raises(OutOfBudgetError, match=r"stage 'sink' .*No space left.*the disk is full"):
        run_graph(graph, tmp_path, runtime=runtime)


class WritesToFull(Operator):
    """A sink whose disk is full."""

    def open(self, _: Context) -> None:
        self._file = FULL.open("w", buffering=1)

    def process(self, number: Number) -> None:
        os.write(self._file.fileno(), f"{number.value}\n".encode())

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json"])
def test_a_full_disk_of_the_record_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that cannot be written ends the run as a shortage, not with a bare OSError."""

    def full(_: Recorder, __: Event) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", name)

    monkeypatch.setattr(Recorder, "__call__", full)
    with pytest.raises(OutOfBudgetError, match=rf"run 'small' in .*disk is full.*{name}") as caught:
        launch.run(small_graph(steps=1), runtime="inline", run_dir=tmp_path / "run")
    assert exit_code(caught.value) == OUT_OF_BUDGET


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    """Within, this process has no more of it."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.parametrize("spare", [2, 8, 14])
def test_too_few_descriptors(spare: int, tmp_path: Path) -> None:
    """A run that cannot have its sockets and segments says so, and leaves none of them open."""
    run_graph(small_graph(steps=1), tmp_path / "warm", runtime="local")
    before = descriptors()
    graph = small_graph(steps=1, replicas=3)
    check(graph)
    with (
        limited(resource.RLIMIT_NOFILE, len(before) + spare),
        pytest.raises(OutOfBudgetError, match=r"too many files are open .* `ulimit -n`"),
    ):
        execute(graph, runtime="local", run_dir=tmp_path / "run", observe=lambda _: None)
    assert descriptors() == before


@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_too_little_memory(runtime: Runtime, tmp_path: Path) -> None:
    """A pool that the machine does not give is refused by name, whatever /dev/shm may hold."""
    graph = small_graph(steps=1, capacity="64 GiB")
    check(graph)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = descriptors()
    with (
        limited(resource.RLIMIT_AS, used + 2**33),
        pytest.raises(
            OutOfBudgetError, match=r"shared memory cannot be made: .* lower capacity= .*Errno 12"
        ),
    ):
        execute(graph, runtime=runtime, run_dir=tmp_path, observe=lambda _: None)
    assert descriptors() == before


def test_a_segment_that_cannot_be_had_leaves_nothing() -> None:
    """Its descriptor is closed again."""
    before = descriptors()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with limited(resource.RLIMIT_AS, used + 2**33), pytest.raises(OSError, match="allocate memory"):
        Segment.create(2**36)
    assert descriptors() == before


def test_memory_that_torch_does_not_get_is_a_shortage() -> None:
    """torch says so with a RuntimeError; an operator's own mistake is none."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    told = describe_shortage(caught.value)
    assert told is not None
    assert "not enough memory" in told
    assert describe_shortage(ValueError("no")) is None
    assert describe_shortage(StageError("the out of memory killer")) is None
