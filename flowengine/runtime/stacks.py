"""Python stacks of workers, taken from outside: also of one that never looks at its messages.

A worker has faulthandler write its stacks to a file when it gets SIGNAL. Where py-spy is installed
and may look at the process, it is asked instead: it also sees one that takes no signal.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

FOLDER = "stacks"
SIGNAL = signal.SIGUSR1
WAIT_S = 1.0
SPY_S = 5.0


def write_stacks_on_signal(run_dir: Path, label: str) -> None:
    """Called in the worker, once."""
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / f"{label}.txt").open("w")
    faulthandler.register(SIGNAL, file=file, all_threads=True)


def take_stacks(run_dir: Path, pids: Mapping[str, int]) -> dict[str, str]:
    """The stacks of these workers now, by label; those that give none in time are left out."""
    spied = {label: _spy(pid) for label, pid in pids.items()} if shutil.which("py-spy") else {}
    found = {label: stack for label, stack in spied.items() if stack}
    return found | _ask(run_dir, {label: pids[label] for label in pids if label not in found})


def _spy(pid: int) -> str:
    """What py-spy says of the process; nothing where it may not look."""
    command = ["py-spy", "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SPY_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _ask(run_dir: Path, pids: Mapping[str, int]) -> dict[str, str]:
    """The stacks that faulthandler writes in the workers themselves."""
    paths = {label: run_dir / FOLDER / f"{label}.txt" for label in pids}
    before = {label: _size(path) for label, path in paths.items()}
    for label, pid in pids.items():
        if paths[label].exists():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, SIGNAL)
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and any(_size(paths[n]) == before[n] for n in pids):
        time.sleep(0.02)
    time.sleep(0.02)
    found = {}
    for label, path in paths.items():
        if _size(path) > before[label]:
            with path.open() as file:
                file.seek(before[label])
                found[label] = file.read()
    return found


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
