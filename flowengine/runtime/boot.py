"""What a worker of the local runtime is told at its start."""

from __future__ import annotations

import pickle
import socket
from dataclasses import dataclass
from pathlib import Path

from flowengine.errors import GraphError
from flowengine.graph import Graph
from flowengine.pool import Segment
from flowengine.runtime.start import Start


@dataclass
class Boot:
    """All that a worker is told at its start. Segments and sockets arrive as its own.

    graph: the pickled Graph, from this run's supervisor; graph_file: to import before unpickling.
    supervisor: its process id.
    began: the run's start on the monotonic clock, which all processes of a machine share.
    rendezvous: the file where the ranks of its gang find each other, if it is in one.
    spans: whether to tell what was done when. profile: the steps that torch's profiler is on.
    """

    index: int
    label: str
    graph: bytes
    graph_file: Path | None
    run_dir: Path
    began: float
    supervisor: int
    num_threads: int
    segments: dict[int, Segment]
    disks: dict[int, Segment]
    board: Segment
    control: socket.socket
    links: dict[int, socket.socket]
    start: Start
    rendezvous: Path | None = None
    spans: bool = True
    profile: tuple[range, ...] = ()


def pickle_graph(graph: Graph) -> bytes:
    """The graph for its workers; GraphError naming the first part of it that cannot travel."""
    parts: list[tuple[str, object]] = [(str(s), (s.what, s.optimizer)) for s in graph.stages]
    parts += [(f"feedback ({feedback.line})", feedback.what) for feedback in graph.feedbacks]
    parts += [(f"evaluate ({each.line})", each.source) for each in graph.evaluations]
    for where, what in parts:
        try:
            pickle.dumps(what)
        except Exception as error:
            raise GraphError(
                f"{where}: cannot be sent to its worker: {error}; define functions and "
                "operators at the top level of a module, or use the inline runtime"
            ) from None
    return pickle.dumps(graph)
