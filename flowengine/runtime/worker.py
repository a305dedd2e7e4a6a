"""A worker: the process that runs one stage replica under the local runtime.

Rules.
- It runs its stage and moves messages, in one thread. It sleeps only in `select`, on its sockets.
- It dies with the supervisor, whose process it watches in a thread; or by PDEATHSIG, or at the end
  of its control link, whichever comes first.
- What goes wrong is said on the control link, in text, before the process ends.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import select
import selectors
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from flowengine.channel import Kind, Link, Message
from flowengine.errors import FlowError, OutOfBudgetError, RefusedSampleError, StageError
from flowengine.graph.load import load_module
from flowengine.pool import Pool
from flowengine.runtime.board import Board
from flowengine.runtime.boot import Boot
from flowengine.runtime.clockwork import LONGEST, Clockwork, close_stage, failing, name_error
from flowengine.runtime.look import take_notes
from flowengine.runtime.mesh import open_mesh
from flowengine.runtime.profiler import StepProfiler
from flowengine.runtime.site import make_site
from flowengine.runtime.spans import SpanLog, Work
from flowengine.runtime.stacks import write_stacks_on_signal
from flowengine.runtime.stage import Stage
from flowengine.runtime.stages import make_stage
from flowengine.runtime.topology import COORDINATOR, Topology
from flowengine.shortage import describe_shortage

IDLE_S = 0.5
"""After so long without a message, garbage that may hold leases is collected once."""

NOTE_S = 0.1
"""A worker that never waits notes what it does as often as this."""

_PR_SET_PDEATHSIG = 1


def run_worker(boot: Boot) -> None:
    """The worker's main function."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(boot.num_threads)
    control = Link(boot.control)
    threading.Thread(target=_die_with, args=(boot.supervisor,), daemon=True).start()
    try:
        write_stacks_on_signal(boot.run_dir, boot.label)
        _Worker(boot, control).run()
    except RefusedSampleError as error:
        _say(control, (Kind.NOTICE, "refused", str(error), list(error.samples), error.reason))
    except FlowError as error:
        _say_error(control, type(error), str(error), error)
    except BaseException as error:
        text = f"worker '{boot.label}' failed: {name_error(error)}"
        shortage = describe_shortage(error)
        if shortage is None:
            _say_error(control, StageError, text, error)
        _say_error(control, OutOfBudgetError, f"{text}: {shortage}", error)


def _die_with(supervisor: int) -> None:
    """Ends this process when the supervisor's does, also while the operator never comes back."""
    try:
        watched = os.pidfd_open(supervisor)
    except ProcessLookupError:
        os._exit(1)
    select.select([watched], [], [])
    os._exit(1)


def _say_error(control: Link, kind: type[FlowError], text: str, error: BaseException) -> NoReturn:
    """Ends the process. What is said is text alone: the error itself need not be picklable."""
    cause = error.__cause__ or error
    try:
        lines = "".join(traceback.format_exception(cause))
    except Exception:  # Its own __str__ fails; where it was raised can be told all the same.
        lines = "".join(traceback.format_tb(cause.__traceback__))
    lines = lines[-LONGEST:].encode("utf-8", "backslashreplace").decode("utf-8")
    samples = list(getattr(error, "samples", ()))
    _say(control, (Kind.NOTICE, "error", kind.__name__, text, lines, samples))


def _say(control: Link, last_words: Message) -> NoReturn:
    control.send(last_words)
    control.drain()
    sys.exit(1)


class _Worker:
    def __init__(self, boot: Boot, control: Link) -> None:
        if boot.graph_file is not None:
            load_module(boot.graph_file)
        topology = Topology(pickle.loads(boot.graph))
        self._boot = boot
        self._control = control
        self._links = {peer: Link(connection) for peer, connection in boot.links.items()}
        self._board = Board(boot.board)
        self._mine: list[tuple[int, Message]] = []
        self._stopped = False
        self._profiler: StepProfiler | None = None
        worker = topology.workers[boot.index]
        self._stage: Stage = make_stage(
            make_site(
                topology,
                boot.index,
                pool=Pool(
                    boot.index,
                    boot.segments,
                    worker.limit,
                    disks=boot.disks,
                    disk_limit=worker.disk_limit,
                ),
                post=self._post,
                clock=self._clock,
                run_dir=boot.run_dir,
                on_hand=self._take_in_hand,
                on_work=self._on_work,
                start=boot.start,
            )
        )
        self._selector = selectors.DefaultSelector()
        for peer, link in [(COORDINATOR, control), *self._links.items()]:
            self._selector.register(link, selectors.EVENT_READ, (peer, link))

    def run(self) -> None:
        """Opens the stage and runs it until the supervisor says stop."""
        self._clockwork = Clockwork(self._clock, spans=SpanLog() if self._boot.spans else None)
        self._noted_s = 0.0
        try:
            self._run()
        except BaseException:
            with suppress(Exception):  # What went wrong first is what is told.
                self._stage.close()
            raise
        if self._profiler is not None:
            self._profiler.close()
        close_stage(self._stage)
        self._note(waits=True)
        self._send_spans()
        self._post(COORDINATOR, self._times())
        self._control.drain()

    def _run(self) -> None:
        with failing(self._stage, "failed to open"):
            self._join_gang()
            self._stage.open()
        if self._boot.profile:
            self._profiler = StepProfiler(
                self._boot.profile,
                run_dir=self._boot.run_dir,
                stages=[self._boot.label],
                lag=self._stage.site.graph.staleness,
                clock=self._clock,
            )
        self._post(COORDINATOR, (Kind.NOTICE, "ready", self._boot.index, os.getpid()))
        while not self._stopped:
            moved = self._clockwork.run(self._stage)
            if not moved or self._clockwork.since_s - self._noted_s > NOTE_S:
                self._note(waits=not moved)
            self._move_messages(wait=not moved and not self._mine)

    def _join_gang(self) -> None:
        if self._boot.rendezvous is not None:
            site, gang = self._stage.site, self._stage.spec.gang
            store = dist.FileStore(str(self._boot.rendezvous), gang.size)  # type: ignore[attr-defined]
            site.mesh = open_mesh(gang, site.worker.rank, store)

    def _clock(self) -> float:
        return time.perf_counter() - self._boot.began

    def _post(self, to: int, message: Message) -> None:
        if to == self._boot.index:
            self._mine.append((to, message))
        elif to == COORDINATOR:
            self._control.send(message)
        else:
            self._links[to].send(message)

    def _take_in_hand(self, samples: tuple[int, ...]) -> None:
        self._board.take_in_hand(self._boot.index, samples, now_s=self._clock())

    def _on_work(self, work: Work) -> None:
        if self._profiler is not None:
            self._profiler.begin(self._boot.label, work)

    def _note(self, *, waits: bool) -> None:
        clockwork, stage = self._clockwork, self._stage
        self._noted_s = clockwork.since_s
        notes = take_notes(stage, clockwork, waits=waits)
        self._board.write(self._boot.index, notes)
        if clockwork.spans is not None and clockwork.spans.is_due(clockwork.since_s):
            self._send_spans()

    def _send_spans(self) -> None:
        clockwork = self._clockwork
        if clockwork.spans is not None:
            columns = clockwork.spans.take(clockwork.since_s)
            self._post(COORDINATOR, (Kind.NOTICE, "spans", self._boot.index, columns))

    def _move_messages(self, *, wait: bool) -> None:
        mine, self._mine = self._mine, []
        for sender, message in mine:
            self._handle(sender, message)
        self._watch_writes()
        ready = self._selector.select(IDLE_S if wait else 0)
        if wait and not ready:
            gc.collect()
            self._stage.return_leases()
            self._watch_writes()
            ready = self._selector.select(None)
        if wait:
            self._board.wake(self._boot.index, now_s=self._clock())
        for key, events in ready:
            peer, link = key.data
            self._serve(peer, link, events)

    def _watch_writes(self) -> None:
        for key in list(self._selector.get_map().values()):
            _, link = key.data
            events = selectors.EVENT_READ
            events |= selectors.EVENT_WRITE if link.wants_to_write else 0
            if events != key.events:
                self._selector.modify(link, events, key.data)

    def _serve(self, peer: int, link: Link, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            link.flush()
        if events & selectors.EVENT_READ:
            for message in link.receive():
                self._take(peer, message)
        if link.closed:
            self._selector.unregister(link)
            link.close()
            if peer == COORDINATOR:
                os._exit(1)

    def _take(self, peer: int, message: Message) -> None:
        if peer == COORDINATOR and message[1] == "stop":
            self._stopped = True
        else:
            self._handle(peer, message)

    def _handle(self, sender: int, message: Message) -> None:
        self._clockwork.handle(self._stage, sender, message)

    def _times(self) -> tuple[Any, ...]:
        causes = {cause: round(seconds, 6) for cause, seconds in self._clockwork.causes.items()}
        return (Kind.NOTICE, "times", self._boot.index, causes)
