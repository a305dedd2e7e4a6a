"""Rules on a graph's shape: its numbers, its names, one source, no cycle."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flowengine.api import Source
from flowengine.errors import GraphError
from flowengine.graph.description import POOL, Skip, StageSpec
from flowengine.graph.dtype import ITEM_BYTES
from flowengine.graph.graph import Graph
from flowengine.graph.size import parse_bytes

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def numbers_are_sane(graph: Graph) -> Iterator[str]:
    at_least = [(f"{graph}: Step(samples=)", graph.step.samples, 1)]
    at_least.append((f"{graph}: staleness", graph.staleness, 0))
    if graph.steps is not None:
        at_least.append((f"{graph}: steps", graph.steps, 1))
    at_least += [(f"{s}: replicas", s.replicas, 1) for s in graph.stages]
    at_least += [(f"{s}: gang data", s.gang.data, 1) for s in graph.stages]
    at_least += [(f"{s}: gang tensor", s.gang.tensor, 1) for s in graph.stages]
    at_least += [(f"{s}: window", s.window, 1) for s in graph.stages if s.window is not None]
    at_least += [(f"{s}: credits items", s.credits.items, 1) for s in graph.stages]
    for evaluation in graph.evaluations:
        at_least.append((f"evaluate ({evaluation.line}): samples", evaluation.samples, 1))
        at_least.append((f"evaluate ({evaluation.line}): every", evaluation.every, 0))
    if (kept := graph.checkpoints) is not None:
        at_least.append((f"checkpoint ({kept.line}): every", kept.every, 0))
        at_least.append((f"checkpoint ({kept.line}): keep_last", kept.keep_last, 1))
    for what, found, least in at_least:
        if not isinstance(found, int) or found < least:
            yield f"{what} is {found!r}; expected a whole number of at least {least}"
    clip_norm = graph.clip_norm
    if clip_norm is not None and not (isinstance(clip_norm, int | float) and clip_norm > 0):
        yield (
            f"{graph}: clip_norm is {clip_norm!r}; expected a positive number, or None for no "
            "clipping"
        )
    for where, dtype in [(graph, graph.dtype), *((stage, stage.dtype) for stage in graph.stages)]:
        if dtype is not None and dtype not in ITEM_BYTES:
            yield f"{where}: dtype is {dtype!r}; expected one of {list(ITEM_BYTES)}"
    for stage in graph.stages:
        if stage.activations not in ("stash", "recompute"):
            yield f"{stage}: activations is {stage.activations!r}; expected 'stash' or 'recompute'"
        yield from _policy_is_sane(stage)
        try:
            parse_bytes(stage.credits.size)
        except GraphError as error:
            yield f"{stage}: credits: {error}"


def _policy_is_sane(stage: StageSpec) -> Iterator[str]:
    policy = stage.bad_samples
    if isinstance(policy, Skip):
        if not isinstance(policy.limit, int) or policy.limit < 1:
            yield f"{stage}: Skip(limit=) is {policy.limit!r}; expected a whole number above 0"
    elif policy not in ("raise", "dead-letter"):
        yield (
            f"{stage}: bad_samples is {policy!r}; expected 'raise', 'dead-letter' or Skip(limit=)"
        )


def names_are_unique(graph: Graph) -> Iterator[str]:
    if not _NAME.fullmatch(graph.name):
        yield f"{graph}: the name is its run directory's; use letters, digits, '_' and '-'"
    seen: dict[str, StageSpec] = {}
    for stage in graph.stages:
        if not _NAME.fullmatch(stage.name):
            yield f"{stage}: the name is its weight file's; use letters, digits, '_' and '-'"
        if stage.name == POOL:
            yield f"{stage}: the name 'pool' is taken by the pool; pass another name="
        if stage.name in seen:
            yield f"{stage}: the name is taken by line {seen[stage.name].line}; pass name="
        seen[stage.name] = stage


def there_is_one_source(graph: Graph) -> Iterator[str]:
    sources = [str(stage) for stage in graph.stages if isinstance(stage.what, Source)]
    if len(sources) != 1:
        yield (
            f"{graph} has {len(sources)} sources ({', '.join(sources) or 'none'}); expected one: "
            "mix several data sets inside one source, so that a step has one order of samples"
        )


def there_is_no_cycle(graph: Graph) -> Iterator[str]:
    done: set[str] = set()
    for stage in graph.stages:
        loop = _find_loop(graph, stage.name, [], done)
        if loop:
            first = graph.stage(next(name for name in loop if name != POOL))
            yield (
                f"{first}: {' -> '.join(loop)} is a cycle, which would wait for itself; "
                "the only way back is graph.feedback(GradientReturn(), gradients, to=features)"
            )
            return


def _find_loop(graph: Graph, name: str, path: list[str], done: set[str]) -> list[str]:
    if name in path:
        return [*path[path.index(name) :], name][::-1]
    if name in done:
        return []
    for above in upstream(graph, name):
        loop = _find_loop(graph, above, [*path, name], done)
        if loop:
            return loop
    done.add(name)
    return []


def upstream(graph: Graph, name: str) -> list[str]:
    """The stages whose streams `name` reads, the pool counted as a stage."""
    if name == POOL:
        return [endpoint.stage for pool in graph.joins for endpoint in pool.inputs]
    return [endpoint.stage for endpoint in graph.stage(name).producers]


def ancestors(graph: Graph, name: str) -> set[str]:
    """All stages whose values reach `name`."""
    found: set[str] = set()
    ahead = upstream(graph, name)
    while ahead:
        above = ahead.pop()
        if above not in found:
            found.add(above)
            ahead += upstream(graph, above)
    return found
