"""Refuses before the run what can be refused: every rule is a function from a graph to problems.

A problem is one sentence: where, what was found, what was expected, what to do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from flowengine.api import (
    Encoder,
    Features,
    Joined,
    Objective,
    Packer,
    Sample,
    Source,
    Trainable,
)
from flowengine.errors import GraphError
from flowengine.graph.description import POOL, Endpoint, FeedbackSpec, StageSpec
from flowengine.graph.graph import Graph
from flowengine.graph.ports import fits, read_signature, type_name
from flowengine.graph.share import share_bytes
from flowengine.graph.size import format_bytes, parse_bytes

Rule = Callable[[Graph], Iterator[str]]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def check(graph: Graph) -> None:
    """Raises GraphError with every problem found, one per line; returns if there is none."""
    problems = find_problems(graph)
    if problems:
        raise GraphError("\n".join(problems))


def find_problems(graph: Graph) -> list[str]:
    """Every problem of the graph. Later rules rely on earlier ones, so the first group that finds
    anything ends the search."""
    for rules in (_SHAPE, _MEANING):
        problems = [problem for rule in rules for problem in rule(graph)]
        if problems:
            return problems
    return []


def _numbers(graph: Graph) -> Iterator[str]:
    at_least = [(f"{graph}: Step(samples=)", graph.step.samples, 1)]
    at_least.append((f"{graph}: staleness", graph.staleness, 0))
    if graph.steps is not None:
        at_least.append((f"{graph}: steps", graph.steps, 1))
    at_least += [(f"{s}: replicas", s.replicas, 1) for s in graph.stages]
    at_least += [(f"{s}: window", s.window, 1) for s in graph.stages if s.window is not None]
    at_least += [(f"{s}: credits items", s.credits.items, 1) for s in graph.stages]
    for evaluation in graph.evaluations:
        at_least.append((f"evaluate ({evaluation.line}): samples", evaluation.samples, 1))
        at_least.append((f"evaluate ({evaluation.line}): every", evaluation.every, 0))
    for what, found, least in at_least:
        if not isinstance(found, int) or found < least:
            yield f"{what} is {found!r}; expected a whole number of at least {least}"
    clip_norm = graph.clip_norm
    if clip_norm is not None and not (isinstance(clip_norm, int | float) and clip_norm > 0):
        yield (
            f"{graph}: clip_norm is {clip_norm!r}; expected a positive number, or None for no "
            "clipping"
        )
    if graph.dtype not in ("float32", "float64"):
        yield f"{graph}: dtype is {graph.dtype!r}; expected 'float32' or 'float64'"
    for stage in graph.stages:
        if stage.activations not in ("stash", "recompute"):
            yield f"{stage}: activations is {stage.activations!r}; expected 'stash' or 'recompute'"
        try:
            parse_bytes(stage.credits.size)
        except GraphError as error:
            yield f"{stage}: credits: {error}"


def _names(graph: Graph) -> Iterator[str]:
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


def _one_source(graph: Graph) -> Iterator[str]:
    sources = [str(stage) for stage in graph.stages if isinstance(stage.what, Source)]
    if len(sources) != 1:
        yield (
            f"{graph} has {len(sources)} sources ({', '.join(sources) or 'none'}); expected one: "
            "mix several data sets inside one source, so that a step has one order of samples"
        )


def _edge_types(graph: Graph) -> Iterator[str]:
    for stage in graph.stages:
        for port, wanted in stage.signature.inputs.items():
            if not stage.inputs[port]:
                yield f"{stage}: input port '{port}' has no stream; give it one"
            for endpoint in stage.inputs[port]:
                given = _type_of(graph, endpoint)
                if not fits(given, wanted):
                    yield (
                        f"{stage}: port '{port}' takes {type_name(wanted)}, but '{endpoint}' gives "
                        f"{type_name(given)}; {_remedy(given, wanted)}"
                    )


def _type_of(graph: Graph, endpoint: Endpoint) -> type:
    if endpoint.stage == POOL:
        return Joined
    return graph.stage(endpoint.stage).signature.outputs[endpoint.port]


def _remedy(given: type, wanted: type) -> str:
    if wanted is Joined:
        return "a packer reads a pool: pass graph.pool(samples, features, capacity=...)"
    if given is Joined:
        return "put a packer between the pool and this stage"
    return f"put a stage between them that turns {type_name(given)} into {type_name(wanted)}"


def _pool_inputs(graph: Graph) -> Iterator[str]:
    if len(graph.joins) > 1:
        lines = [pool.line for pool in graph.joins]
        yield f"{graph} has pools at {lines}; expected one: join all features in it"
    for pool in graph.joins:
        kinds = [_type_of(graph, endpoint) for endpoint in pool.inputs]
        if kinds and kinds[0] is not Sample:
            yield (
                f"pool ({pool.line}): the first stream '{pool.inputs[0]}' gives "
                f"{type_name(kinds[0])}; expected Sample, then one stream of Features per encoder"
            )
        for endpoint, kind in zip(pool.inputs[1:], kinds[1:], strict=True):
            if kind is not Features:
                yield (
                    f"pool ({pool.line}): '{endpoint}' gives {type_name(kind)}; expected Features, "
                    "the output of an encoder"
                )


def _no_cycle(graph: Graph) -> Iterator[str]:
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


def _everything_is_read(graph: Graph) -> Iterator[str]:
    read = {endpoint for stage in graph.stages for endpoint in stage.producers}
    read |= {endpoint for pool in graph.joins for endpoint in pool.inputs}
    read |= {feedback.source for feedback in graph.feedbacks}
    for stage in graph.stages:
        for port in stage.signature.outputs:
            endpoint = Endpoint(stage.name, port)
            if endpoint not in read and not isinstance(stage.what, Objective):
                yield f"{stage}: nobody reads '{endpoint}'; add a stage that does, or remove it"
    if graph.joins and Endpoint(POOL, "out") not in read:
        yield f"pool ({graph.joins[0].line}): nobody reads it; add a packer"


def _an_end(graph: Graph) -> Iterator[str]:
    for stage in graph.stages:
        if isinstance(stage.what, Source):
            num_samples = stage.what.num_samples()
            if num_samples is None and graph.steps is None:
                yield f"{stage}: has no end, and the graph no steps=; say how many to train"
            if num_samples is not None and num_samples < graph.step.samples:
                yield (
                    f"{stage}: has {num_samples} samples, fewer than one step of "
                    f"{graph.step.samples}; lower Step(samples=)"
                )


def _single_readers(graph: Graph) -> Iterator[str]:
    for kind, noun in ((Packer, "packer"), (Objective, "objective")):
        found = [str(stage) for stage in graph.stages if isinstance(stage.what, kind)]
        if len(found) > 1:
            yield f"{graph} has {len(found)} {noun}s: {', '.join(found)}; expected one"
    for stage in graph.stages:
        if isinstance(stage.what, Source | Packer) and stage.replicas > 1:
            yield f"{stage}: has replicas={stage.replicas}; a source or packer has one, it orders"
        if isinstance(stage.what, Encoder):
            readers = [s for s in graph.stages if Endpoint(stage.name, "out") in s.producers]
            if readers and stage.trains:
                yield (
                    f"{readers[0]}: reads the features of '{stage.name}', whose bytes carry the "
                    "gradient back; read them in front of the encoder, or set freeze=True"
                )


def _modalities(graph: Graph) -> Iterator[str]:
    seen: dict[str, StageSpec] = {}
    for stage in graph.stages:
        if isinstance(stage.what, Encoder):
            modality = stage.what.modality
            if modality in seen:
                yield f"{stage}: '{seen[modality].name}' encodes '{modality}' already; expected one"
            seen[modality] = stage


def _training(graph: Graph) -> Iterator[str]:
    returned = {feedback.to for feedback in graph.feedbacks}
    for stage in graph.stages:
        if not isinstance(stage.what, Trainable):
            if stage.optimizer is not None or stage.freeze:
                yield f"{stage}: has no weights; remove optimizer= and freeze="
        elif stage.trains and stage.optimizer is None:
            yield (
                f"{stage}: trains but has no optimizer; pass optimizer=AdamW(lr=...), "
                "or freeze=True"
            )
        elif stage.trains and isinstance(stage.what, Encoder) and stage.name not in returned:
            yield (
                f"{stage}: trains, but no gradient returns to it; add graph.feedback("
                f"GradientReturn(), gradients, to={stage.name}), or freeze=True"
            )
    if not any(isinstance(stage.what, Trainable) for stage in graph.stages):
        return
    if any(isinstance(s.what, Encoder) for s in graph.stages) and not graph.joins:
        yield f"{graph} has an encoder and no pool; add graph.pool(samples, features)"


def _feedbacks(graph: Graph) -> Iterator[str]:
    for feedback in graph.feedbacks:
        where = f"feedback ({feedback.line})"
        given, wanted = _type_of(graph, feedback.source), _gradient_type(feedback)
        if not fits(given, wanted):
            yield (
                f"{where}: returns {type_name(wanted)}, but '{feedback.source}' gives "
                f"{type_name(given)}; pass the gradients of the objective, e.g. model['gradients']"
            )
        elif feedback.to == POOL or not isinstance(graph.stage(feedback.to).what, Encoder):
            yield f"{where}: to='{feedback.to}' is no encoder; gradients return to features"
        elif not isinstance(graph.stage(feedback.source.stage).what, Objective):
            yield f"{where}: '{feedback.source}' is no objective's; its backward makes gradients"
        elif feedback.to not in ancestors(graph, feedback.source.stage):
            yield (
                f"{where}: '{feedback.source}' has never seen the features of '{feedback.to}'; "
                "expected gradients from a stage downstream of it"
            )
    seen: dict[str, str] = {}
    for feedback in graph.feedbacks:
        if feedback.to in seen:
            yield (
                f"feedback ({feedback.line}): '{feedback.to}' has one already "
                f"({seen[feedback.to]}); expected one per encoder"
            )
        seen[feedback.to] = feedback.line


def _gradient_type(feedback: FeedbackSpec) -> type:
    return next(iter(read_signature(feedback.what).inputs.values()))


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


def _pool_holds_a_pack(graph: Graph) -> Iterator[str]:
    packers = [stage.what for stage in graph.stages if isinstance(stage.what, Packer)]
    if not graph.joins or not packers:
        return
    pool, itemsize = graph.joins[0], 8 if graph.dtype == "float64" else 4
    max_tokens = packers[0].max_tokens
    for stage in graph.stages:
        if isinstance(stage.what, Encoder):
            share = share_bytes(graph, stage)
            needed = max_tokens * math.prod(stage.what.feature_shape()) * itemsize
            if needed > share:
                enough = -(-pool.capacity * needed // max(1, share)) + 2**16
                yield (
                    f"pool ({pool.line}): one pack of {max_tokens} tokens has up to "
                    f"{format_bytes(needed)} of features of '{stage.name}', whose share of "
                    f"capacity='{format_bytes(pool.capacity)}' is {format_bytes(share)}; raise "
                    f"capacity= to at least {enough} bytes, or lower max_tokens="
                )


def _evaluations(graph: Graph) -> Iterator[str]:
    if len(graph.evaluations) > 1:
        yield f"{graph} has {len(graph.evaluations)} evaluations; expected one"
    for evaluation in graph.evaluations:
        where = f"evaluate ({evaluation.line})"
        if not isinstance(evaluation.source, Source):
            yield f"{where}: {evaluation.source!r} is no source; pass one, with held-out samples"
            continue
        entry = None if evaluation.through == POOL else graph.stage(evaluation.through)
        if entry is None or not isinstance(entry.what, Source):
            yield f"{where}: through='{evaluation.through}' is no source; pass the source's stream"
        elif (given := _sample_type(evaluation.source)) != (wanted := _sample_type(entry.what)):
            yield (
                f"{where}: its source gives {type_name(given)}, but '{entry.name}', whose way its "
                f"samples go, gives {type_name(wanted)}; expected the same type"
            )
        held_out = evaluation.source.num_samples()
        if held_out is not None and held_out < evaluation.samples:
            yield f"{where}: asks for {evaluation.samples} samples, the source has {held_out}"
        answers = [
            Endpoint(s.name, "answers") for s in graph.stages if isinstance(s.what, Objective)
        ]
        if not any(endpoint in s.producers for endpoint in answers for s in graph.stages):
            yield f"{where}: nobody reads the answers; add graph.add(Accuracy(), model['answers'])"


def _sample_type(source: Source[Any]) -> type:
    return read_signature(source).outputs["out"]


_SHAPE: tuple[Rule, ...] = (_numbers, _names, _one_source, _no_cycle)
_MEANING: tuple[Rule, ...] = (
    _edge_types,
    _pool_inputs,
    _everything_is_read,
    _an_end,
    _single_readers,
    _modalities,
    _training,
    _feedbacks,
    _pool_holds_a_pack,
    _evaluations,
)
