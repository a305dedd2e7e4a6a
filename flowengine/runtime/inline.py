"""The inline runtime: all stages in this process, one piece of work after another, always in the
same order. For tests, for debugging, and as the reference that the others are held against."""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

from flowengine.channel import Kind, Message
from flowengine.checkpoint import Folder
from flowengine.errors import InterruptedRunError, StallError
from flowengine.graph import Graph
from flowengine.pool import Pool, Segment
from flowengine.runtime.clockwork import Clockwork, close_stage, failing
from flowengine.runtime.coordinator import Coordinator
from flowengine.runtime.events import (
    CheckpointDone,
    Observer,
    RunDone,
    StageStatus,
    Status,
)
from flowengine.runtime.interrupt import Interrupt, catching_signals, describe_interrupt
from flowengine.runtime.look import channel_statuses, pool_status
from flowengine.runtime.profiler import StepProfiler
from flowengine.runtime.saver import make_publisher
from flowengine.runtime.segments import make_disks, make_segments
from flowengine.runtime.site import make_site
from flowengine.runtime.spans import SpanLog, Work
from flowengine.runtime.stage import Stage
from flowengine.runtime.stages import make_stage
from flowengine.runtime.stall import describe_stall, find_dependencies, look_closer
from flowengine.runtime.start import BEGINNING, Start
from flowengine.runtime.threads import threads_per_worker
from flowengine.runtime.topology import COORDINATOR, Topology, without_gangs


class InlineRun:
    """One run of a graph in this process."""

    def __init__(
        self,
        graph: Graph,
        *,
        run_dir: Path,
        observe: Observer,
        start: Start = BEGINNING,
        profile: Sequence[range] = (),
        began: float | None = None,
    ) -> None:
        self._began = time.perf_counter() if began is None else began
        self._run_dir = run_dir
        self._start_s = 0.0
        self._topology = Topology(without_gangs(graph))
        self._segments: dict[int, Segment] = make_segments(self._topology)
        self._disks = make_disks(self._topology, run_dir)
        self._mail: deque[tuple[int, int, Message]] = deque()
        self._observe = observe
        self._coordinator = Coordinator(
            self._topology,
            post=lambda worker, message: self._post(COORDINATOR, worker, message),
            observe=observe,
            clock=self.clock,
            start=start,
        )
        self._start = start
        self._profile = profile
        self._profiler: StepProfiler | None = None
        self._publisher = make_publisher(self._topology, self._coordinator, folder=Folder(run_dir))
        self._stages = [self._make_stage(w.index, run_dir) for w in self._topology.workers]
        self._opened: list[Stage] = []
        self._clockworks = [Clockwork(self.clock, spans=SpanLog()) for _ in self._stages]

    def clock(self) -> float:
        """Seconds since the run started."""
        return time.perf_counter() - self._began

    def run(self) -> None:
        """Runs the graph to its end; StallError if that is out of reach, InterruptedRunError if a
        signal ended it early."""
        with catching_signals() as interrupt:
            self._run_and_close(interrupt)
        self._publish()
        weights = self._coordinator.weights
        done = RunDone(self.clock(), self._start_s, self.status(), weights, interrupt.came)
        self._observe(done)
        if interrupt.came:
            raise InterruptedRunError(
                describe_interrupt(len(self._coordinator.losses), self._run_dir)
            )

    def _run_and_close(self, interrupt: Interrupt) -> None:
        threads_before = torch.get_num_threads()
        torch.set_num_threads(threads_per_worker(self._topology))
        try:
            self._run(interrupt)
        except BaseException:
            with suppress(Exception):  # What went wrong first is what is told.
                self._close()
            with suppress(Exception):
                self._publish()
            raise
        finally:
            torch.set_num_threads(threads_before)
        self._close()
        self._send_spans(every=True)

    def _run(self, interrupt: Interrupt) -> None:
        for stage in self._stages:
            self._opened.append(stage)
            with failing(stage, "failed to open"):
                stage.open()
        if self._profile:
            self._profiler = StepProfiler(
                self._profile,
                run_dir=self._run_dir,
                stages=[worker.label for worker in self._topology.workers],
                lag=self._topology.graph.staleness,
                clock=self.clock,
            )
        self._start_s = last_look = self.clock()
        while not self._coordinator.is_done:
            moved = [self._advance(stage) for stage in self._stages]
            if not any(moved) and not self._coordinator.is_done and not self._find_leases():
                known = find_dependencies(self._topology.graph)
                raise StallError(describe_stall(look_closer(self.status(), known), known))
            if interrupt.take():
                for stage in self._stages:
                    self._post(COORDINATOR, stage.site.worker.index, (Kind.NOTICE, "finish"))
            if self.clock() - last_look > 0.25:
                last_look = self.clock()
                self._publish()
                self._observe(self.status())
            self._send_spans()

    def _publish(self) -> None:
        for step, path in self._publisher.poll():
            self._observe(CheckpointDone(step, self.clock(), path))

    def _send_spans(self, *, every: bool = False) -> None:
        """Tells of the spans of the stages that have many, or of all."""
        for worker, clockwork in enumerate(self._clockworks):
            if clockwork.spans is not None and (every or clockwork.spans.is_due(clockwork.since_s)):
                columns = clockwork.spans.take(clockwork.since_s)
                self._coordinator.handle((Kind.NOTICE, "spans", worker, columns))

    def _find_leases(self) -> bool:
        """Whether garbage held leases that are now returned."""
        gc.collect()
        for stage in self._stages:
            stage.return_leases()
        return self._deliver()

    def _on_work(self, label: str, work: Work) -> None:
        if self._profiler is not None:
            self._profiler.begin(label, work)

    def _close(self) -> None:
        if self._profiler is not None:
            self._profiler.close()
        with ExitStack() as closing:
            for segment in (*self._segments.values(), *self._disks.values()):
                closing.callback(segment.close)
            for stage in reversed(self._opened):
                closing.callback(close_stage, stage)

    def status(self) -> Status:
        """A look at all stages."""
        stages = tuple(
            StageStatus(
                stage=stage.spec.name,
                replica=stage.site.worker.replica,
                state=stage.waits.state,
                waits_for=stage.waits.on,
                busy_s=clockwork.seconds["busy"],
                blocked_s=clockwork.seconds["blocked"],
                starved_s=clockwork.seconds["starved"],
                causes=dict(clockwork.causes),
                since_s=clockwork.since_s,
                in_hand=stage.in_hand,
                pid=os.getpid(),
            )
            for stage, clockwork in zip(self._stages, self._clockworks, strict=True)
        )
        pool = pool_status(self._topology, [stage.pool for stage in self._stages])
        channels = channel_statuses(self._topology, [stage.levels() for stage in self._stages])
        return Status(self.clock(), stages, pool, channels)

    def _make_stage(self, index: int, run_dir: Path) -> Stage:
        worker = self._topology.workers[index]
        return make_stage(
            make_site(
                self._topology,
                index,
                pool=Pool(
                    index,
                    self._segments,
                    worker.limit,
                    disks=self._disks,
                    disk_limit=worker.disk_limit,
                ),
                post=lambda to, message: self._post(index, to, message),
                clock=self.clock,
                run_dir=run_dir,
                on_work=lambda work: self._on_work(worker.label, work),
                start=self._start,
            )
        )

    def _advance(self, stage: Stage) -> bool:
        clockwork = self._clockworks[stage.site.worker.index]
        moved = clockwork.run(stage)
        return self._deliver() or moved

    def _post(self, sender: int, to: int, message: Message) -> None:
        self._mail.append((sender, to, message))

    def _deliver(self) -> bool:
        """Delivers all that is on its way; whether there was anything."""
        delivered = bool(self._mail)
        while self._mail:
            sender, to, message = self._mail.popleft()
            if to == COORDINATOR:
                self._coordinator.handle(message)
            else:
                self._clockworks[to].handle(self._stages[to], sender, message)
        return delivered
