"""report.json: a run in numbers. Times in seconds, sizes in bytes; null where there is nothing.

    status            "done", "interrupted" or "failed"; error: its text, null if done
    run_dir           the run directory; created: when the run started, UTC, ISO 8601
    config            graph, file, step_samples, steps, staleness, clip_norm, seed, dtype, runtime,
                      command (the command line), pool_capacity_bytes, feedback, evaluation,
                      stages: by name its kind, operator (its repr), line, reads, replicas (ranks
                      of a gang among them), gang (data and tensor ranks),
                      optimizer, freeze, dtype, activations, window
                      environment: flowengine, python, torch, platform, cores, threads
    steps, samples, tokens, targets     trained
    wall_s            of the whole run; start_s: until the first stage could begin to work
    samples_per_s     over the steps after the first, evaluations in between included
    tokens_per_s      the same for tokens, media placeholders included
    media             by modality: items encoded (pictures, clips, ...) and per_s, as above
    mfu               over the steps after the first: peak_flops_per_s, peak_origin, total; by stage
                      flops, share of all, mfu, busy_s (flowengine.observe.rates has the formula);
                      stages is empty unless operations were counted (--peak-flops)
    prediction        of the plan that the run followed: step_s, samples_per_s, bottleneck, mfu;
                      measured_step_s: over the steps after the third, evaluations in between
                      included; error: predicted over measured, less 1. null without a plan
    losses            per step: mean over its target tokens
    staleness         per step: the largest of its encoders, in optimizer steps
    stages            by name: busy_s, blocked_s, starved_s, causes, summed over its replicas; and
                      replicas: the same one by one
    pool              peak_bytes, capacity_bytes, disk_peak_bytes, disk_capacity_bytes, packs,
                      mean_pack_fill (tokens over room), mean_padding (what of the room stayed
                      empty; it is not computed)
    deferred          samples that were left to the next step, counted once each
    cost              of packs, as measured: fits, how many there were; last, the fields of the
                      last (linear, quadratic, constant in seconds; residual as a part of the mean
                      time; packs), null if there is none; drifts: {step, wall_s, error} of every
                      time that the fit no longer held
    results           what operators reported last: by stage and name
                      evaluations: a list of {step, wall_s, results}, in order, where results holds
                      what the stages that read answers reported, by stage and name
    weights           file per trained stage, relative to the run directory
    restarts          {step, wall_s, reason} of every return to a checkpoint after a worker's death
    dead_letters      {sample, stage, reason} of the samples that were left out in this run
    checkpoints       {step, wall_s, path} of all that were made; the older may be gone

`make_report` gives Python's numbers; in the file, numbers that are not finite are null
(flowengine.observe.event_json).
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import flowengine
from flowengine.api import Objective
from flowengine.graph import Graph
from flowengine.graph.kind import describe_operator, kind_of
from flowengine.graph.shape_rules import ancestors
from flowengine.observe.rates import Peak, add_items, summarise
from flowengine.observe.tally import Tally
from flowengine.runtime.events import StageStatus

WARM_STEPS = 3
"""As simulations leave out (flowengine.plan.figures.WARM)."""


def make_report(
    tally: Tally,
    *,
    graph: Graph,
    config: dict[str, Any],
    run_dir: Path,
    peak: Peak | None = None,
    predicted: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report of a run that is over; the module's docstring is its schema. predicted: by the
    plan that the run follows."""
    steps, done, started = tally.steps, tally.done, tally.started
    packs = sum(step.packs for step in steps)
    pool = tally.status.pool if tally.status else None
    fill = sum(s.fill * s.packs for s in steps) / packs if packs else None
    steady = [e for e in tally.efforts if steps and e.step > steps[0].step]
    elapsed_s = steps[-1].wall_s - steps[0].wall_s if steps else 0.0
    return {
        "status": "failed" if done is None else "interrupted" if done.interrupted else "done",
        "error": tally.error,
        "run_dir": str(run_dir),
        "created": config["created"],
        "config": {
            **{key: value for key, value in config.items() if key != "created"},
            "runtime": started.runtime if started else None,
        },
        "steps": len(steps),
        "samples": tally.samples,
        "tokens": tally.tokens,
        "targets": sum(step.targets for step in steps),
        "wall_s": tally.wall_s,
        "start_s": done.start_s if done else None,
        "samples_per_s": tally.samples_per_s,
        "tokens_per_s": tally.tokens_per_s,
        "media": {
            name: {"items": count, "per_s": _per_s(add_items(steady).get(name, 0), elapsed_s)}
            for name, count in add_items(tally.efforts).items()
        },
        "mfu": summarise(
            steady,
            busy_s={name: times["busy_s"] for name, times in _stage_times(tally).items()},
            elapsed_s=elapsed_s,
            peak=peak,
        ),
        "prediction": _prediction(tally, predicted) if predicted is not None else None,
        "losses": [step.loss for step in steps],
        "staleness": [max(step.staleness.values(), default=0) for step in steps],
        "stages": _stage_times(tally),
        "pool": {
            "peak_bytes": pool.peak_bytes if pool else None,
            "capacity_bytes": pool.capacity_bytes if pool else None,
            "disk_peak_bytes": pool.disk_peak_bytes if pool else None,
            "disk_capacity_bytes": pool.disk_capacity_bytes if pool else None,
            "packs": packs,
            "mean_pack_fill": fill,
            "mean_padding": None if fill is None else 1 - fill,
        },
        "deferred": sum(step.deferred for step in steps),
        "cost": {
            "fits": len(tally.fits),
            "last": asdict(tally.fits[-1]) if tally.fits else None,
            "drifts": [asdict(drift) for drift in tally.drifts],
        },
        "results": {**tally.results, "evaluations": _evaluations(tally, graph)},
        "weights": dict(done.weights) if done else {},
        "restarts": [
            {"step": each.step, "wall_s": each.wall_s, "reason": each.reason}
            for each in tally.restarts
        ],
        "dead_letters": [
            {"sample": each.sample, "stage": each.stage, "reason": each.reason}
            for each in tally.dead_letters.values()
        ],
        "checkpoints": [
            {"step": each.step, "wall_s": each.wall_s, "path": str(each.path)}
            for each in tally.checkpoints
        ],
    }


def _per_s(count: int, elapsed_s: float) -> float | None:
    return count / elapsed_s if elapsed_s > 0 else None


def _prediction(tally: Tally, predicted: Mapping[str, Any]) -> dict[str, Any]:
    measured = None
    if len(tally.steps) > WARM_STEPS:
        took = tally.steps[-1].wall_s - tally.steps[WARM_STEPS - 1].wall_s
        measured = took / (len(tally.steps) - WARM_STEPS)
    error = predicted["step_s"] / measured - 1 if measured else None
    return {**predicted, "measured_step_s": measured, "error": error}


def describe_config(graph: Graph, *, command: Sequence[str]) -> dict[str, Any]:
    """What was asked for, and where it runs."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **describe_graph(graph),
        "command": list(command),
        "environment": describe_environment(),
    }


def describe_graph(graph: Graph) -> dict[str, Any]:
    """The graph's settings and stages."""
    return {
        "graph": graph.name,
        "file": str(graph.file) if graph.file else None,
        "step_samples": graph.step.samples,
        "steps": graph.steps,
        "staleness": graph.staleness,
        "clip_norm": graph.clip_norm,
        "seed": graph.seed,
        "dtype": graph.dtype,
        "pool_capacity_bytes": graph.joins[0].capacity if graph.joins else None,
        "feedback": [
            {"operator": repr(f.what), "from": str(f.source), "to": f.to} for f in graph.feedbacks
        ],
        "evaluation": [
            {"source": repr(e.source), "samples": e.samples, "every": e.every}
            for e in graph.evaluations
        ],
        "stages": {
            stage.name: {
                "kind": kind_of(stage),
                "operator": describe_operator(stage.what),
                "line": stage.line,
                "reads": [str(endpoint) for endpoint in stage.producers],
                "replicas": stage.num_workers,
                "gang": [stage.gang.data, stage.gang.tensor],
                "optimizer": repr(stage.optimizer) if stage.optimizer else None,
                "freeze": stage.freeze,
                "dtype": stage.dtype,
                "activations": stage.activations,
                "window": stage.window,
            }
            for stage in graph.stages
        },
    }


def describe_environment() -> dict[str, Any]:
    """Versions and the machine; cores: those this process may use; threads: torch's."""
    import torch

    return {
        "flowengine": flowengine.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "threads": torch.get_num_threads(),
    }


def _stage_times(tally: Tally) -> dict[str, Any]:
    stages: dict[str, list[StageStatus]] = {}
    for status in tally.status.stages if tally.status else ():
        stages.setdefault(status.stage, []).append(status)
    return {
        name: {**_times(statuses), "replicas": [_times([status]) for status in statuses]}
        for name, statuses in stages.items()
    }


def _times(statuses: list[StageStatus]) -> dict[str, Any]:
    causes: Counter[str] = Counter()
    for status in statuses:
        causes.update(status.causes)
    return {
        "busy_s": sum(status.busy_s for status in statuses),
        "blocked_s": sum(status.blocked_s for status in statuses),
        "starved_s": sum(status.starved_s for status in statuses),
        "causes": dict(causes),
    }


def evaluation_stages(graph: Graph) -> set[str]:
    """The stages that read an objective's answers, directly or through others."""
    first = {
        stage.name
        for stage in graph.stages
        for endpoint in stage.producers
        if endpoint.port == "answers" and isinstance(graph.stage(endpoint.stage).what, Objective)
    }
    return {s.name for s in graph.stages if s.name in first or first & ancestors(graph, s.name)}


def _evaluations(tally: Tally, graph: Graph) -> list[dict[str, Any]]:
    stages = evaluation_stages(graph) if graph.evaluations else set()
    found: list[dict[str, Any]] = []
    for report in tally.reports:
        if report.stage not in stages:
            continue
        said = found[-1]["results"].get(report.stage, {}) if found else {}
        if not found or found[-1]["step"] != report.step or report.name in said:
            found.append({"step": report.step, "wall_s": report.wall_s, "results": {}})
        found[-1]["results"].setdefault(report.stage, {})[report.name] = report.value
    return found
