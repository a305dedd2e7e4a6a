"""Measures a graph's operators on this machine, each alone, over packs of many sizes."""

from __future__ import annotations

import copy
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from flowengine.api import Encoder, Joined, Lengths, Objective, Packer, Sample, Source, join_samples
from flowengine.graph import Graph
from flowengine.graph.description import StageSpec
from flowengine.plan.contention import measure_slowdown
from flowengine.plan.data import describe_data
from flowengine.plan.load import Line, Load, load_of
from flowengine.plan.profile import Profile, StageProfile
from flowengine.plan.work import modality_of_load, opened, stage_of, trainable_stages
from flowengine.runtime.events import Event, StepDone
from flowengine.runtime.flight import fly, land
from flowengine.runtime.inline import InlineRun
from flowengine.runtime.threads import threads_per_worker
from flowengine.runtime.topology import Topology
from flowengine.runtime.weights import build_module

REPEATS = 3
STEPS = 4
"""Of the whole graph in one process, to find what the engine adds; the first does not count."""

STATISTICS = 1024
"""Samples that the data's statistics are of."""

Group = tuple[list[Sample], list[Lengths]]


def measure_graph(graph: Graph, *, repeats: int = REPEATS) -> Profile:
    """The profile of a checked graph: some seconds of work for a small one."""
    threads_before, threads = torch.get_num_threads(), threads_per_worker(Topology(graph))
    torch.set_num_threads(threads)
    try:
        return _measure(graph, threads=threads, repeats=repeats)
    finally:
        torch.set_num_threads(threads_before)


def _measure(graph: Graph, *, threads: int, repeats: int) -> Profile:
    encoders, objective = trainable_stages(graph)
    samples, lengths, read = _read_samples(graph)
    with opened(graph, stage_of(graph, Packer)) as packer:
        plan_s = _median(lambda: packer.plan(lengths[: graph.step.samples]), repeats)
        packs = packer.plan(lengths[: graph.step.samples])
        groups = _groups(samples, lengths, packs, packer.max_tokens)
    busy = _run_inline(graph)
    stages, measured = {}, []
    for stage in (*encoders, objective):
        known, rows = _measure_stage(graph, stage, groups, repeats=repeats)
        mean = [load_of([lengths[i] for i in pack], modality_of_load(stage)) for pack in packs]
        stages[stage.name] = _with_overhead(known, mean, busy[stage.name])
        measured += rows
    cores = len(os.sched_getaffinity(0))
    source, joiner = stage_of(graph, Source).name, stage_of(graph, Packer).name
    each = graph.step.samples
    return Profile(
        graph=graph.name,
        stages=stages,
        read=Line(sample=max(read, (busy[source] - plan_s) / each)),
        plan_s=plan_s,
        join=Line(sample=busy[joiner] / each),
        cores=cores,
        threads=threads,
        slowdown=measure_slowdown(cores=cores, most=cores + 1),
        data=_describe(graph, stages),
        measured=measured,
    )


def _read_samples(graph: Graph) -> tuple[list[Sample], list[Lengths], float]:
    """One step's samples and lengths, and the seconds that reading one took."""
    with opened(graph, stage_of(graph, Source)) as source:
        total, count = source.num_samples(), graph.step.samples
        places = [at if total is None else at % total for at in range(count)]
        lengths = [source.lengths(at) for at in places]
        source.read(places[0])
        began = time.perf_counter()
        samples = [source.read(at) for at in places]
        return samples, lengths, (time.perf_counter() - began) / count


def _groups(
    samples: Sequence[Sample],
    lengths: Sequence[Lengths],
    packs: Sequence[Sequence[int]],
    max_tokens: int,
) -> list[Group]:
    """Packs to measure: those of the plan, and runs of 1, 2, 4, ... samples that fit."""
    found = [list(pack) for pack in packs]
    size = 1
    while size < len(samples):
        for start in range(0, min(len(samples), 3 * size), size):
            run = list(range(start, min(start + size, len(samples))))
            if sum(lengths[index].tokens for index in run) <= max_tokens:
                found.append(run)
        size *= 2
    return [([samples[i] for i in run], [lengths[i] for i in run]) for run in found]


def _measure_stage(
    graph: Graph, stage: StageSpec, groups: Sequence[Group], *, repeats: int
) -> tuple[StageProfile, list[dict[str, Any]]]:
    assert not isinstance(stage.what, type)
    module = build_module(stage, seed=graph.seed, dtype=graph.dtype)
    with opened(graph, stage):
        run = _Turns(graph, stage, module)
        rows, loads = [], []
        for samples, lengths in groups:
            load = load_of(lengths, modality_of_load(stage))
            if not load.samples:
                continue
            loads.append(load)
            rows.append(run.measure(samples, lengths, repeats=repeats))
        update_s = run.update_s(repeats)
    forward, error = fit_line(loads, [row["forward"] for row in rows])
    backward, _ = fit_line(loads, [row["backward"] for row in rows])
    kept, _ = fit_line(loads, [row["kept_bytes"] for row in rows])
    weights = sum(p.nbytes for p in module.parameters())
    known = StageProfile(
        forward=forward,
        backward=backward,
        update_s=update_s,
        kept_bytes=kept,
        weights_bytes=weights * (4 if stage.trains else 1),
        residual=error,
    )
    return known, _table(stage, loads, rows)


class _Turns:
    """A stage's module, run on one pack after the other."""

    def __init__(self, graph: Graph, stage: StageSpec, module: nn.Module) -> None:
        self._graph, self._stage, self._module = graph, stage, module
        encoders, _ = trainable_stages(graph)
        self._features = {e.what.modality: e for e in encoders if isinstance(e.what, Encoder)}
        self._dtype = getattr(torch, graph.dtype)
        self._learns = stage.trains or any(encoder.trains for encoder in encoders)

    def measure(
        self, samples: Sequence[Sample], lengths: Sequence[Lengths], *, repeats: int
    ) -> dict[str, float]:
        """Median seconds of forward and backward, and the bytes that the backward needs kept."""
        encodes = isinstance(self._stage.what, Encoder)
        turn = self._encode if encodes else self._train
        with _counting(self._module) as kept:
            turn(samples, lengths)
        done = [turn(samples, lengths) for _ in range(repeats)]
        forward, backward = (statistics.median(column) for column in zip(*done, strict=True))
        return {"forward": forward, "backward": backward, "kept_bytes": kept()}

    def update_s(self, repeats: int) -> float:
        """Median seconds of what ends a step: the norm, clipping, the optimizer."""
        if not self._stage.trains:
            return 0.0
        assert self._stage.optimizer is not None
        parameters = [p for p in self._module.parameters() if p.requires_grad]
        optimizer = self._stage.optimizer.build(parameters)

        def update() -> None:
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()

        return _median(update, repeats + 1)

    def _encode(self, samples: Sequence[Sample], lengths: Sequence[Lengths]) -> tuple[float, float]:
        del lengths
        stage = self._stage
        assert isinstance(stage.what, Encoder)
        media = [item for sample in samples for item in sample.items(stage.what.modality)]
        learns = stage.trains
        began = time.perf_counter()
        flight = fly(
            stage, media, module=self._module, step=0, seed=0, learns=learns, dtype=self._dtype
        )
        between = time.perf_counter()
        if not learns:
            return between - began, 0.0
        land(stage, flight, torch.ones(flight.shape, dtype=self._dtype))
        return between - began, time.perf_counter() - between

    def _train(self, samples: Sequence[Sample], lengths: Sequence[Lengths]) -> tuple[float, float]:
        assert isinstance(self._stage.what, Objective)
        joined = tuple(
            Joined(sample, self._rows(each)) for sample, each in zip(samples, lengths, strict=True)
        )
        pack = join_samples(tuple(range(len(samples))), joined)
        for name, rows in pack.features.items():
            rows.requires_grad_(self._features[name].trains)
        began = time.perf_counter()
        loss = self._stage.what.loss(self._module, pack)
        float(loss.detach())
        between = time.perf_counter()
        if loss.requires_grad:
            torch.autograd.backward(loss)
        return between - began, time.perf_counter() - between

    def _rows(self, lengths: Lengths) -> dict[str, Tensor]:
        shapes = {
            name: (lengths.media[name], *stage.what.feature_shape())
            for name, stage in self._features.items()
            if lengths.media.get(name) and isinstance(stage.what, Encoder)
        }
        return {name: torch.randn(shape, dtype=self._dtype) for name, shape in shapes.items()}


@contextmanager
def _counting(module: nn.Module) -> Iterator[Callable[[], int]]:
    """Counts the bytes that autograd keeps within the block, weights apart."""
    weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield lambda: sum(kept.values())


def fit_line(loads: Sequence[Load], values: Sequence[float]) -> tuple[Line, float]:
    """The line with the least squares of relative errors, no coefficient below 0 (Lawson and Hanson
    1974), and the root of their mean."""
    wanted = np.array(values, np.float64)
    if not wanted.any():
        return Line(), 0.0
    terms = np.array([load.terms for load in loads]) / wanted[:, np.newaxis]
    scale = np.maximum(terms.max(axis=0), 1e-300)
    found, error = nnls(terms / scale, np.ones(len(wanted)))
    return Line(*(found / scale).tolist()), float(error) / len(wanted) ** 0.5


def _run_inline(graph: Graph) -> dict[str, float]:
    """Busy seconds per step of every stage, all in one process, after the first step."""
    short = copy.copy(graph)
    short.steps, short.evaluations, short.checkpoints = STEPS, [], None
    short.stages = [copy.copy(stage) for stage in graph.stages if stage.signature.outputs]
    for stage in short.stages:
        stage.replicas = 1
    looks: list[dict[str, float]] = []

    def observe(event: Event) -> None:
        if isinstance(event, StepDone):
            looks.append({status.stage: status.busy_s for status in run.status().stages})

    with tempfile.TemporaryDirectory() as directory:
        run = InlineRun(short, run_dir=Path(directory), observe=observe)
        run.run()
    gc.collect()
    return {
        name: statistics.median(b[name] - a[name] for a, b in pairwise(looks)) for name in looks[0]
    }


def _with_overhead(known: StageProfile, packs: Sequence[Load], busy_s: float) -> StageProfile:
    """The engine's own time of a pack is part of its forward: what a step took beyond the rest."""
    alone = sum(known.forward.seconds(p) + known.backward.seconds(p) for p in packs)
    extra = max(0.0, busy_s - alone - known.update_s) / max(1, sum(p.samples > 0 for p in packs))
    return StageProfile(**{**vars(known), "forward": known.forward + Line(constant=extra)})


def _describe(graph: Graph, stages: dict[str, StageProfile]) -> dict[str, Any]:
    encoders, objective = trainable_stages(graph)
    with opened(graph, stage_of(graph, Source)) as source:
        total = source.num_samples() or STATISTICS
        lengths = [source.lengths(at) for at in range(min(total, STATISTICS))]
    both = {name: stage.forward + stage.backward for name, stage in stages.items()}
    return describe_data(
        lengths,
        encoders={e.name: (modality_of_load(e), both[e.name]) for e in encoders},
        objective=both[objective.name],
    )


def _table(
    stage: StageSpec, loads: Sequence[Load], rows: Sequence[dict[str, float]]
) -> list[dict[str, Any]]:
    return [
        {
            "stage": stage.name,
            "what": what,
            "samples": load.samples,
            "rows": load.rows,
            "squares": load.squares,
            "seconds": row[what],
            "kept_bytes": int(row["kept_bytes"]) if what == "forward" else None,
        }
        for load, row in zip(loads, rows, strict=True)
        for what in ("forward", "backward")
    ]


def _median(turn: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        turn()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])
