"""Where the ranks of a gang find each other on one machine: a file in a directory of the run.

The supervisor makes the directory and removes it; ranks then talk over the loopback device.
"""

from __future__ import annotations

import shutil
import tempfile
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from flowengine.runtime.topology import Topology, WorkerSpec

PEER_S = 5.0
"""A rank that loses its peer in a collective says so at once; the peer's death is looked for as
long as this."""


class Rendezvous:
    """Of all gangs of a run; empty for a run without."""

    def __init__(self, topology: Topology, run_dir: Path) -> None:
        self._directory: Path | None = None
        if any(stage.gang.size > 1 for stage in topology.graph.stages):
            run_dir.mkdir(parents=True, exist_ok=True)
            self._directory = Path(tempfile.mkdtemp(prefix=".gangs-", dir=run_dir)).absolute()

    def of(self, worker: WorkerSpec) -> Path | None:
        """The file for this worker's gang; None without one."""
        if self._directory is None or worker.stage.gang.size == 1:
            return None
        return self._directory / worker.stage.name

    def close(self) -> None:
        """Removes what is left."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def find_lost_peer(
    worker: WorkerSpec, error: str, topology: Topology, processes: dict[int, BaseProcess]
) -> WorkerSpec | None:
    """The rank whose end made this worker's collective fail with this error, if there is one."""
    if worker.stage.gang.size == 1 or "gloo/transport" not in error:
        return None
    peers = [p for p in topology.replicas_of(worker.stage.name) if p.index != worker.index]
    gone = wait([processes[peer.index].sentinel for peer in peers], timeout=PEER_S)
    return next((p for p in peers if processes[p.index].sentinel in gone), None)
