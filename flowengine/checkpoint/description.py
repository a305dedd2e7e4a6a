"""What makes two graphs the same training, and two machines give the same bits."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

from flowengine.graph import Graph
from flowengine.graph.description import StageSpec
from flowengine.graph.kind import describe_operator


def describe_graph(graph: Graph) -> dict[str, Any]:
    """All that decides what is computed, of JSON's types.

    Left out is what decides only where, when, and for how long: replicas, bounds, activations,
    evaluations, the number of steps.
    """
    return {
        "step samples": graph.step.samples,
        "staleness": graph.staleness,
        "clip_norm": graph.clip_norm,
        "seed": graph.seed,
        "dtype": graph.dtype,
        "feedback": [f"{f.what!r} {f.source} -> {f.to}" for f in graph.feedbacks],
        "stages": {stage.name: _describe_stage(stage) for stage in graph.stages},
    }


def _describe_stage(stage: StageSpec) -> dict[str, Any]:
    return {
        "operator": describe_operator(stage.what),
        "reads": {port: [str(e) for e in ends] for port, ends in stage.inputs.items()},
        "optimizer": repr(stage.optimizer) if stage.optimizer else None,
        "freeze": stage.freeze,
        "dtype": stage.dtype,
    }


def describe_machine() -> dict[str, Any]:
    """What a run's bits depend on besides the graph."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def find_differences(
    old: Mapping[str, Any], new: Mapping[str, Any], *, where: str = ""
) -> list[str]:
    """`path: old value, now new value` for everything that differs."""
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        path = f"{where}.{key}" if where else key
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += find_differences(before, after, where=path)
        elif before != after:
            found.append(f"{path}: {_shown(old, key)}, now {_shown(new, key)}")
    return found


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values and values[key] is not None else "none"
