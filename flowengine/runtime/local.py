"""The local runtime: this process supervises, and a process per stage replica works.

Rules.
- The supervisor makes all shared memory and all sockets, hands them over as descriptors, and keeps
  no name for any of them: when the processes are gone, everything is gone.
- Any worker that dies or fails ends the run at once: the others are killed, then the error is
  raised. Whatever happens, `run` returns with no worker left.
- Every wait has a deadline: TICK_S for a look at the workers, stall_s for progress.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from flowengine.channel import Kind, Link, Message
from flowengine.checkpoint import Folder
from flowengine.errors import InterruptedRunError, RefusedSampleError, WorkerLostError
from flowengine.graph import Graph
from flowengine.nursery import open_nursery
from flowengine.pool import Segment
from flowengine.runtime.board import Board
from flowengine.runtime.boot import Boot, pickle_graph
from flowengine.runtime.coordinator import Coordinator
from flowengine.runtime.death import lost_error, told_error
from flowengine.runtime.events import CheckpointDone, Observer, RunDone, Status
from flowengine.runtime.interrupt import catching_signals, describe_interrupt
from flowengine.runtime.look import channel_statuses, pool_status, stage_status
from flowengine.runtime.rendezvous import Rendezvous, find_lost_peer
from flowengine.runtime.saver import make_publisher
from flowengine.runtime.segments import make_disks, make_segments
from flowengine.runtime.stacks import FOLDER
from flowengine.runtime.start import BEGINNING, Start
from flowengine.runtime.threads import threads_of
from flowengine.runtime.topology import Topology, WorkerSpec
from flowengine.runtime.watch import StallWatch
from flowengine.runtime.worker import run_worker
from flowengine.shortage import naming_shortages

TICK_S = 0.25
STOP_S = 5.0


class LocalRun:
    """One run of a graph in worker processes of this machine."""

    def __init__(
        self,
        graph: Graph,
        *,
        run_dir: Path,
        observe: Observer,
        start: Start = BEGINNING,
        stall_s: float = 60.0,
        began: float | None = None,
        spans: bool = True,
        profile: Sequence[range] = (),
    ) -> None:
        self._began = time.perf_counter() if began is None else began
        self._topology = Topology(graph)
        self._run_dir = run_dir
        self._rendezvous = Rendezvous(self._topology, run_dir)
        self._observe = observe
        self._spans = spans
        self._profile = tuple(profile)
        self._coordinator = Coordinator(
            self._topology, post=self._post, observe=observe, clock=self.clock, start=start
        )
        self._start_at = start
        self._publisher = make_publisher(self._topology, self._coordinator, folder=Folder(run_dir))
        self._segments: list[Segment] = []
        self._processes: dict[int, BaseProcess] = {}
        self._controls: dict[int, Link] = {}
        self._selector = selectors.DefaultSelector()
        self._ready: set[int] = set()
        self._pids: dict[int, int] = {}
        self._start_s = 0.0
        self._causes: dict[int, dict[str, float]] = {}
        self._watch = StallWatch(self._topology, run_dir=run_dir, stall_s=stall_s)
        self._last_look = 0.0

    def clock(self) -> float:
        """Seconds since the run started."""
        return time.perf_counter() - self._began

    def run(self) -> None:
        """Runs the graph to its end. StageError, WorkerLostError, StallError or CheckpointError if
        it fails; InterruptedRunError if a signal ended it early."""
        with catching_signals() as interrupt:
            try:
                with naming_shortages("the workers cannot be started"), ExitStack() as handed:
                    self._start(handed)
                while not self._coordinator.is_done:
                    self._look()
                    if interrupt.take():
                        self._tell_all("finish")
                self._stop()
                self._publish()
                self._observe(self._describe_end(interrupted=interrupt.came))
            except BaseException as error:
                self._kill()
                with suppress(Exception):  # What went wrong first is what is told.
                    self._publish()
                if interrupt.came and isinstance(error, WorkerLostError):
                    raise self._interrupted() from error  # Who wants an end wants no restart.
                raise
            finally:
                self._clean_up()
        if interrupt.came:
            raise self._interrupted()

    def _interrupted(self) -> InterruptedRunError:
        steps = len(self._coordinator.losses)
        return InterruptedRunError(describe_interrupt(steps, self._run_dir))

    def _describe_end(self, *, interrupted: bool) -> RunDone:
        weights = self._coordinator.weights
        return RunDone(self.clock(), self._start_s, self.status(), weights, interrupted)

    def status(self) -> Status:
        """A look at all workers."""
        notes = [self._board.read(worker.index) for worker in self._topology.workers]
        stages = tuple(
            stage_status(
                worker,
                note,
                now_s=self.clock(),
                causes=self._causes.get(worker.index, {}),
                pid=self._pids.get(worker.index, 0),
            )
            for worker, note in zip(self._topology.workers, notes, strict=True)
        )
        pool = pool_status(self._topology, notes)
        channels = channel_statuses(self._topology, [note.levels for note in notes])
        return Status(self.clock(), stages, pool, channels)

    # starting

    def _start(self, handed: ExitStack) -> None:
        """Starts the workers. handed: closes our copies of what is theirs."""
        workers = self._topology.workers
        blob = pickle_graph(self._topology.graph)
        segments = make_segments(self._topology)
        disks = make_disks(self._topology, self._run_dir)
        board = Segment.create(Board.size_bytes(len(workers)))
        self._segments = [*segments.values(), *disks.values(), board]
        self._board = Board(board)
        links: dict[int, dict[int, socket.socket]] = {worker.index: {} for worker in workers}
        for one, other in sorted(self._topology.pairs):
            ends = socket.socketpair()
            links[one][other], links[other][one] = map(handed.enter_context, ends)
        context = open_nursery()
        for worker in workers:
            ours, theirs = socket.socketpair()
            self._controls[worker.index] = Link(ours)
            handed.enter_context(theirs)
            boot = Boot(
                index=worker.index,
                label=worker.label,
                graph=blob,
                graph_file=self._topology.graph.file,
                run_dir=self._run_dir,
                began=self._began,
                supervisor=os.getpid(),
                num_threads=threads_of(worker, self._topology),
                segments=segments,
                disks=disks,
                board=board,
                control=theirs,
                links=links[worker.index],
                start=self._start_at,
                rendezvous=self._rendezvous.of(worker),
                spans=self._spans,
                profile=self._profile,
            )
            process = context.Process(target=run_worker, args=(boot,), name=worker.label)
            process.start()
            assert process.pid is not None
            self._pids[worker.index] = process.pid
            self._processes[worker.index] = process
            self._selector.register(ours, selectors.EVENT_READ, ("control", worker))
            self._selector.register(process.sentinel, selectors.EVENT_READ, ("death", worker))

    # running

    def _look(self) -> None:
        ready = self._selector.select(TICK_S)
        events = sorted((key.data[0], key.data[1].index, key.data[1]) for key, _ in ready)
        for what, _, worker in events:
            if what == "control":
                self._receive(worker)
        for what, _, worker in events:
            if what == "death":
                self._on_death(worker)
        for link in self._controls.values():
            link.flush()
        self._tick()

    def _receive(self, worker: WorkerSpec) -> None:
        link = self._controls[worker.index]
        for message in link.receive():
            self._watch.heard()
            self._take(worker, message)
        if link.closed and link.fileno() >= 0:
            self._selector.unregister(link.connection)
            link.close()

    def _take(self, worker: WorkerSpec, message: Message) -> None:
        _, subject, *fields = message
        if subject == "ready":
            self._ready.add(worker.index)
            if len(self._ready) == len(self._topology.workers):
                self._start_s = self.clock()
        elif subject == "error":
            kind, text, trace, samples = fields
            peer = find_lost_peer(worker, text, self._topology, self._processes)
            if peer is not None:
                self._on_death(peer)
            raise told_error(kind, f"{text}\n\n{trace}", samples)
        elif subject == "refused":
            text, samples, reason = fields
            raise RefusedSampleError(
                text,
                stage=worker.stage.name,
                samples=tuple(samples),
                reason=reason,
                spares=worker.stage.spares,
            )
        elif subject == "times":
            self._causes[worker.index] = fields[1]
        else:
            self._coordinator.handle(message)

    def _on_death(self, worker: WorkerSpec) -> None:
        link = self._controls[worker.index]
        if not link.closed:
            self._receive(worker)
        process = self._processes[worker.index]
        process.join()
        if worker.index in self._causes:
            self._selector.unregister(process.sentinel)
            return
        raise lost_error(worker, self._board.read(worker.index), process.exitcode)

    def _tick(self) -> None:
        now = time.perf_counter()
        if now - self._last_look < TICK_S:
            return
        self._last_look = now
        self._publish()
        status = self.status()
        self._watch.look(status, pids=self._pids)
        self._observe(status)

    def _publish(self) -> None:
        for step, path in self._publisher.poll():
            self._observe(CheckpointDone(step, self.clock(), path))

    def _tell_all(self, subject: str) -> None:
        for worker in self._topology.workers:
            self._post(worker.index, (Kind.NOTICE, subject))

    def _post(self, worker: int, message: Message) -> None:
        self._controls[worker].send(message)

    # ending

    def _stop(self) -> None:
        self._tell_all("stop")
        while len(self._causes) < len(self._processes):
            self._look()
        deadline = time.perf_counter() + STOP_S
        for process in self._processes.values():
            process.join(max(0.0, deadline - time.perf_counter()))

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()

    def _clean_up(self) -> None:
        self._kill()
        for process in self._processes.values():
            process.close()
        shutil.rmtree(self._run_dir / FOLDER, ignore_errors=True)
        self._rendezvous.close()
        self._selector.close()
        for link in self._controls.values():
            link.close()
        for segment in self._segments:
            segment.close()
