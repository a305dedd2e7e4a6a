"""A stage replica as a Ray actor: one thread runs the stage, Ray's threads serve the others.

Rules.
- Messages to a peer are numbered, and taken in by number: Ray need not keep their order, and one
  that came twice is dropped.
- Messages carry rows and returns of leases. Bytes in the pool are read by whoever needs them, from
  their owner, as results in Ray's object store; a gradient goes with its message, by the same way.
- The supervisor asks for notices again and again; an answer says what the worker is doing, too.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist

from flowengine.channel import Kind, Message, payloads_of
from flowengine.channel.message import decode, encode
from flowengine.errors import FlowError, StageError
from flowengine.graph.load import load_module
from flowengine.runtime.board import Notes
from flowengine.runtime.clockwork import Clockwork, close_stage, failing, name_error
from flowengine.runtime.cluster.mirror import Fetched, MirrorPool, Range
from flowengine.runtime.look import take_notes
from flowengine.runtime.mesh import open_mesh
from flowengine.runtime.packer_stage import PackerStage
from flowengine.runtime.segments import make_segments
from flowengine.runtime.site import make_site
from flowengine.runtime.spans import SpanLog
from flowengine.runtime.stages import make_stage
from flowengine.runtime.start import Start
from flowengine.runtime.topology import COORDINATOR, Topology

IDLE_S = 1.0
"""How long a stage sleeps when nobody writes; leases that garbage holds are returned then."""

POLL_S = 0.5
"""How long an answer to the supervisor waits for something to say."""

FETCH_S = 60.0
"""After so long bytes of a peer are given up; it is most likely dead."""

Written = list[tuple[Range, np.ndarray[Any, Any]]]


@dataclass(frozen=True)
class ActorBoot:
    """What an actor is told at its start. began: the run's start by the wall clock, which the
    machines of a cluster share about. interface: the network device
    that ranks of a gang talk over; None leaves it to gloo."""

    index: int
    graph: bytes
    graph_file: Path | None
    run_dir: Path
    began: float
    num_threads: int
    start: Start
    rendezvous: Path | None
    interface: str | None


class StageActor:
    """Serves the peers and the supervisor; made by Ray, see flowengine.runtime.cluster.run."""

    def __init__(self, boot: ActorBoot) -> None:
        self._boot = boot
        self._bell = threading.Condition()
        self._inbox: deque[tuple[int, Message]] = deque()
        self._early: dict[int, dict[int, list[Message]]] = defaultdict(dict)
        self._next: dict[int, int] = defaultdict(int)
        self._notices: deque[bytes] = deque()
        self._spoken = threading.Condition()
        self._sent: dict[int, int] = defaultdict(int)
        self._outbox: dict[int, tuple[list[bytes], Written]] = {}
        self._peers: dict[int, Any] = {}
        self._stopped = False
        self.notes: Notes | None = None

    # what others call

    def meet(self, peers: dict[int, Any]) -> tuple[str, int]:
        """Starts the work; the ids of the node and of the process."""
        self._peers = peers
        threading.Thread(target=self._main, name="stage", daemon=True).start()
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def deliver(self, sender: int, number: int, frames: list[bytes], written: Written) -> None:
        """Takes in a peer's messages, and the bytes that it wrote into spans of this worker."""
        for (at, size), raw in written:
            self._segment.bytes[at : at + size] = raw
        with self._bell:
            early, messages = self._early[sender], [decode(frame) for frame in frames]
            early.setdefault(number, messages)
            while self._next[sender] in early:
                for message in early.pop(self._next[sender]):
                    self._inbox.append((sender, message))
                self._next[sender] += 1
            for late in [n for n in early if n < self._next[sender]]:
                del early[late]
            self._bell.notify()

    def read(self, ranges: Sequence[Range]) -> np.ndarray[Any, Any]:
        """Bytes of this worker's segment, one range after the other."""
        parts = [self._segment.bytes[at : at + size] for at, size in ranges]
        return np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def poll(self) -> tuple[list[bytes], Notes | None]:
        """Notices for the supervisor, after POLL_S at most, and what the worker is doing."""
        with self._spoken:
            self._spoken.wait_for(lambda: bool(self._notices), POLL_S)
            found = [self._notices.popleft() for _ in range(len(self._notices))]
        return found, self.notes

    # the stage's thread

    def _main(self) -> None:
        try:
            self._run()
        except ray.exceptions.RayError as error:
            self._say("error", StageError.__name__, f"peer lost: {name_error(error)}", "")
        except BaseException as error:
            kind = type(error) if isinstance(error, FlowError) else StageError
            text = str(error) if isinstance(error, FlowError) else name_error(error)
            cause = error.__cause__ or error
            self._say("error", kind.__name__, text, "".join(traceback.format_exception(cause)))

    def _run(self) -> None:
        torch.set_num_threads(self._boot.num_threads)
        if self._boot.graph_file is not None:
            load_module(self._boot.graph_file)
        topology = Topology(pickle.loads(self._boot.graph))
        segments = make_segments(topology)
        self._segment = segments[self._boot.index]
        worker = topology.workers[self._boot.index]
        self._pool = MirrorPool(worker.index, segments, worker.limit, ask=self._ask)
        self._stage = make_stage(
            make_site(
                topology,
                worker.index,
                pool=self._pool,
                post=self._post,
                clock=self._clock,
                run_dir=self._boot.run_dir,
                on_hand=self._take_in_hand,
                start=self._boot.start,
            )
        )
        self._moves_rows_alone = isinstance(self._stage, PackerStage)
        self._clockwork = Clockwork(self._clock, spans=SpanLog())
        with failing(self._stage, "failed to open"):
            if self._boot.rendezvous is not None:
                gang = worker.stage.gang
                store = dist.FileStore(str(self._boot.rendezvous), gang.size)  # type: ignore[attr-defined]
                self._stage.site.mesh = open_mesh(
                    gang, worker.rank, store, interface=self._boot.interface
                )
            self._stage.open()
        self._say("ready", worker.index, os.getpid())
        while not self._stopped:
            moved = self._clockwork.run(self._stage)
            self._note(waits=not moved)
            self._send_all()
            self._take_messages(wait=not moved)
        close_stage(self._stage)
        self._send_spans()
        causes = {cause: round(s, 6) for cause, s in self._clockwork.causes.items()}
        self._say("times", worker.index, causes)

    def _take_in_hand(self, samples: tuple[int, ...]) -> None:
        if self.notes is not None:
            self.notes = replace(
                self.notes, state="busy", num_in_hand=len(samples), in_hand=samples
            )

    def _clock(self) -> float:
        return time.time() - self._boot.began

    def _note(self, *, waits: bool) -> None:
        self.notes = take_notes(self._stage, self._clockwork, waits=waits)
        spans = self._clockwork.spans
        if spans is not None and spans.is_due(self._clockwork.since_s):
            self._send_spans()

    def _send_spans(self) -> None:
        if self._clockwork.spans is not None:
            columns = self._clockwork.spans.take(self._clockwork.since_s)
            self._say("spans", self._boot.index, columns)

    # messages

    def _post(self, to: int, message: Message) -> None:
        if to == self._boot.index:
            with self._bell:
                self._inbox.append((to, message))
        elif to == COORDINATOR:
            self._say(*message[1:])
        else:
            frames, written = self._outbox.setdefault(to, ([], []))
            frames.append(encode(message)[4:])
            if message[0] in (Kind.GRADIENT, Kind.RELEASE):
                self._give_back(message, written)
            elif message[0] == Kind.GANG:
                self._send_all()  # The next call is a collective, which waits for who reads this.

    def _give_back(self, message: Message, written: Written) -> None:
        for address, count in message[1]:
            if message[0] == Kind.GRADIENT:
                written += [(at, raw.copy()) for at, raw in self._pool.written(address)]
            self._pool.forget(address, count)

    def _send_all(self) -> None:
        outbox, self._outbox = self._outbox, {}
        for to, (frames, written) in outbox.items():
            self._peers[to].deliver.remote(self._boot.index, self._sent[to], frames, written)
            self._sent[to] += 1

    def _say(self, *fields: Any) -> None:
        frame = encode((Kind.NOTICE, *fields))[4:]
        with self._spoken:
            self._notices.append(frame)
            self._spoken.notify()

    def _take_messages(self, *, wait: bool) -> None:
        with self._bell:
            if wait and not self._inbox and not self._bell.wait(IDLE_S):
                self._stage.return_leases()
            messages = [self._inbox.popleft() for _ in range(len(self._inbox))]
        for sender, message in messages:
            if sender == COORDINATOR and message[1] == "stop":
                self._stopped = True
                continue
            if message[0] == Kind.ROWS and not self._moves_rows_alone:
                self._pool.prefetch([p for row in message[2] for p in payloads_of(row[-1])])
            self._clockwork.handle(self._stage, sender, message)

    # bytes

    def _ask(self, owner: int, ranges: Sequence[Range]) -> Fetched:
        answer = self._peers[owner].read.remote(list(ranges))

        def fetched() -> np.ndarray[Any, Any]:
            found: np.ndarray[Any, Any] = ray.get(answer, timeout=FETCH_S)
            return found

        return fetched
