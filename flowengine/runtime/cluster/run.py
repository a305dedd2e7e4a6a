"""The Ray runtime: this process supervises, and an actor per stage replica or rank works.

Rules.
- Ray places, starts and watches actors, and moves bytes between nodes. It restarts nothing and
  repeats no call: a death ends the run, which goes back to the last checkpoint as on one machine.
- No payload passes through this process; notices of stages do.
- Whatever happens, `run` returns with no actor and no placement left.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from flowengine.channel import Message
from flowengine.channel.message import decode, encode
from flowengine.errors import GraphError, OutOfBudgetError, WorkerLostError
from flowengine.runtime.board import Notes
from flowengine.runtime.boot import pickle_graph
from flowengine.runtime.cluster.actor import ActorBoot, StageActor
from flowengine.runtime.cluster.connect import cpus_of
from flowengine.runtime.death import told_error
from flowengine.runtime.events import Status
from flowengine.runtime.local import TICK_S, LocalRun
from flowengine.runtime.mesh import LOOPBACK
from flowengine.runtime.threads import threads_of
from flowengine.runtime.topology import COORDINATOR, WorkerSpec

PLACE_S = 60.0
"""How long the cluster may take to have room for all actors at once."""

LOST_S = 20.0
"""After a worker has said that a peer is lost, so long the peer's death is waited for."""

_STARTING = Notes("starting", 0.0, "", 0.0, 0.0, 0.0, 0, 0, 0, ())


class RayRun(LocalRun):
    """One run of a graph on the nodes of the cluster that this process is connected to."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._group: Any = None
        self._actors: dict[int, Any] = {}

    def _start(self, _: ExitStack) -> None:
        graph = self._topology.graph
        if any(worker.disk_limit for worker in self._topology.workers):
            raise GraphError(f"{graph}: disk= is there on one machine alone; use capacity=")
        self._board = _Said(len(self._topology.workers))  # type: ignore[assignment]
        self._began_wall = time.time() - self.clock()
        self._polls: dict[Any, WorkerSpec] = {}
        self._sent: dict[int, int] = {}
        self._lost: tuple[str, str, float] | None = None
        self.nodes: dict[str, str] = {}
        self._there: dict[int, int] = {}
        blob = pickle_graph(graph)
        self._place()
        machines = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        interface = LOOPBACK if len(machines) == 1 else None
        actor = ray.remote(StageActor)
        for place, worker in enumerate(self._topology.workers):
            boot = ActorBoot(
                index=worker.index,
                graph=blob,
                graph_file=graph.file,
                run_dir=self._run_dir.absolute(),
                began=self._began_wall,
                num_threads=threads_of(worker, self._topology),
                start=self._start_at,
                rendezvous=self._rendezvous.of(worker),
                interface=interface,
            )
            options = actor.options(
                num_cpus=cpus_of(worker),
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=len(self._topology.workers) + 4,
                scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=place
                ),
            )
            self._actors[worker.index] = options.remote(boot)
        answers = [self._actors[w.index].meet.remote(self._actors) for w in self._workers]
        for worker, answer in zip(self._workers, answers, strict=True):
            self._meet(worker, answer)

    @property
    def _workers(self) -> list[WorkerSpec]:
        return self._topology.workers

    def status(self) -> Status:
        """A look at all workers. Their processes are on other machines, so nobody signals them."""
        seen = super().status()
        pids = [self._there.get(worker.index, 0) for worker in self._workers]
        stages = tuple(replace(s, pid=pid) for s, pid in zip(seen.stages, pids, strict=True))
        return replace(seen, stages=stages)

    def _place(self) -> None:
        bundles = [{"CPU": cpus_of(worker)} for worker in self._workers]
        self._group = placement_group(bundles, strategy="SPREAD")
        if not self._group.wait(PLACE_S):
            wanted = sum(bundle["CPU"] for bundle in bundles)
            have = ray.cluster_resources().get("CPU", 0)
            raise OutOfBudgetError(
                f"{self._topology.graph}: its {len(bundles)} workers need {wanted:g} CPUs and "
                f"found no place in {PLACE_S:.0f} s; the cluster has {have:g}. Add nodes, or use "
                "fewer replicas="
            )

    def _meet(self, worker: WorkerSpec, answer: Any) -> None:
        try:
            met = ray.get(answer, timeout=PLACE_S)
        except ray.exceptions.GetTimeoutError:
            raise OutOfBudgetError(
                f"stage '{worker.label}' ({worker.stage.line}): its actor did not start within "
                f"{PLACE_S:.0f} s; look at the cluster's nodes with `ray status`"
            ) from None
        except ray.exceptions.RayActorError as error:
            raise self._describe_loss(worker, error) from None
        self.nodes[worker.label], self._there[worker.index] = met
        self._poll(worker)

    def _poll(self, worker: WorkerSpec) -> None:
        self._polls[self._actors[worker.index].poll.remote()] = worker

    def _look(self) -> None:
        ready, _ = ray.wait(list(self._polls), num_returns=1, timeout=TICK_S)
        for answer in ready:
            worker = self._polls.pop(answer)
            try:
                frames, notes = ray.get(answer)
            except ray.exceptions.RayActorError as error:
                raise self._describe_loss(worker, error) from None
            self._board.say(worker.index, notes)  # type: ignore[attr-defined]
            self._poll(worker)
            for frame in frames:
                self._watch.heard()
                self._take(worker, decode(frame))
        if self._lost is not None and time.perf_counter() > self._lost[2]:
            raise told_error(*self._lost[:2])
        self._tick()

    def _take(self, worker: WorkerSpec, message: Message) -> None:
        if message[1] == "error":
            _, _, kind, text, trace = message
            if not text.startswith("peer lost") and "gloo/transport" not in text:
                raise told_error(kind, f"{text}\n\n{trace}")
            if self._lost is None:
                self._lost = kind, f"stage '{worker.label}': {text}", time.perf_counter() + LOST_S
            return
        super()._take(worker, message)

    def _describe_loss(self, worker: WorkerSpec, error: Exception) -> WorkerLostError:
        why = str(error).strip().splitlines()[-1]
        node = self.nodes.get(worker.label, "")[:8]
        return WorkerLostError(
            f"stage '{worker.label}' ({worker.stage.line}): its actor on node {node} died: {why}",
            worker=worker.label,
            samples=self._board.read(worker.index).in_hand,
        )

    def _post(self, worker: int, message: Message) -> None:
        number = self._sent.get(worker, 0)
        self._sent[worker] = number + 1
        self._actors[worker].deliver.remote(COORDINATOR, number, [encode(message)[4:]], [])

    def _stop(self) -> None:
        self._tell_all("stop")
        while len(self._causes) < len(self._workers):
            self._look()

    def _kill(self) -> None:
        for actor in self._actors.values():
            ray.kill(actor, no_restart=True)
        self._actors = {}
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None


class _Said:
    """What the workers have said of themselves; reads like a board."""

    def __init__(self, count: int) -> None:
        self._notes = [_STARTING] * count

    def say(self, worker: int, notes: Notes | None) -> None:
        if notes is not None:
            self._notes[worker] = notes

    def read(self, worker: int) -> Notes:
        return self._notes[worker]
