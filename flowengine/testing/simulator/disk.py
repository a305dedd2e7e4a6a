"""The disk of a simulated run: checkpoints that outlive whoever wrote them, and torn writes.

It stands for flowengine.checkpoint's Folder, PartStore and PartWriter. A part is on the disk once
its second file is; a checkpoint is whole once it has its name. `pass_time` is called between any
two of these, and may end everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowengine.checkpoint import Folder, Manifest, Part, PartStore, PartWriter
from flowengine.testing.simulator.watch import breaks

RUN_DIR = Path("simulated")


@dataclass
class Disk:
    """begun: by step and name, parts whose tensors are written; parts: those that are complete.
    whole: checkpoints by step."""

    begun: dict[int, set[str]] = field(default_factory=dict)
    parts: dict[int, dict[str, Part]] = field(default_factory=dict)
    whole: dict[int, tuple[Manifest, dict[str, Part]]] = field(default_factory=dict)

    def sweep(self) -> None:
        """Removes what never became a checkpoint."""
        self.begun.clear()
        self.parts.clear()


class NumberFolder(Folder):
    """A run's checkpoints on a Disk."""

    def __init__(
        self,
        disk: Disk,
        pass_time: Callable[[str], None],
        check: Callable[[Manifest, dict[str, Part]], None],
    ) -> None:
        super().__init__(RUN_DIR)
        self._check = check
        self._disk = disk
        self._pass_time = pass_time

    def sweep(self) -> None:
        self._disk.sweep()

    def find_parts(self) -> dict[int, set[str]]:
        return {step: set(parts) for step, parts in sorted(self._disk.parts.items())}

    def publish(self, manifest: Manifest) -> Path:
        self._pass_time("write the manifest")
        self._disk.whole.pop(manifest.step, None)
        parts = self._disk.parts.pop(manifest.step)
        self._disk.begun.pop(manifest.step, None)
        self._check(manifest, parts)
        self._disk.whole[manifest.step] = (manifest, parts)
        self._pass_time("name the checkpoint")
        return RUN_DIR / f"step-{manifest.step:08d}"

    def keep_last(self, count: int) -> None:
        for step in sorted(self._disk.whole)[:-count]:
            self._pass_time("remove an old checkpoint")
            del self._disk.whole[step]


class NumberStore(PartStore):
    """Parts on a Disk, by writers that take their time. begin: told of a writer with work."""

    def __init__(
        self, disk: Disk, pass_time: Callable[[str], None], begin: Callable[[NumberWriter], None]
    ) -> None:
        self.disk = disk
        self.pass_time = pass_time
        self.begin = begin

    def writer(self, name: str) -> PartWriter:
        return NumberWriter(name, self)

    def read(self, directory: Path, name: str) -> Part:
        return self.disk.whole[int(directory.name[5:])][1][name]


class NumberWriter(PartWriter):
    """Writes a part in two pieces of time, or at once for who waits."""

    def __init__(self, name: str, store: NumberStore) -> None:
        super().__init__(name)
        self._store = store
        self._todo: list[Callable[[], Any]] = []

    @property
    def is_writing(self) -> bool:
        """Whether something is not on the disk yet."""
        return bool(self._todo)

    def write(self, directory: Path, part: Part) -> None:
        self.wait()
        step = int(directory.name[6:14])
        self._todo = [lambda: self._finish(step, part), lambda: self._begin(step)]
        self._store.begin(self)

    def write_on(self) -> None:
        """The next piece."""
        if self._todo:
            self._todo.pop()()

    def wait(self) -> None:
        while self._todo:
            self._store.pass_time(f"write the part of {self._name}")
            self.write_on()

    def look(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _begin(self, step: int) -> None:
        disk = self._store.disk
        if self._name in disk.parts.get(step, ()):
            breaks(f"the part of {self._name} behind step {step} is written over another")
        disk.begun.setdefault(step, set()).add(self._name)

    def _finish(self, step: int, part: Part) -> None:
        self._store.disk.parts.setdefault(step, {})[self._name] = part
