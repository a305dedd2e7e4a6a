"""Rules on streams: types that fit, everything read, an end."""

from __future__ import annotations

from collections.abc import Iterator

from flowengine.api import Encoder, Features, Joined, Objective, Packer, Sample, Source
from flowengine.graph.description import POOL, Endpoint, StageSpec
from flowengine.graph.graph import Graph
from flowengine.graph.ports import fits, type_name


def types_fit(graph: Graph) -> Iterator[str]:
    for stage in graph.stages:
        for port, wanted in stage.signature.inputs.items():
            if not stage.inputs[port]:
                yield f"{stage}: input port '{port}' has no stream; give it one"
            doubled = [e for e in stage.inputs[port] if stage.inputs[port].count(e) > 1]
            if doubled:
                yield f"{stage}: port '{port}' is given '{doubled[0]}' twice; give it once"
            for endpoint in stage.inputs[port]:
                given = type_of(graph, endpoint)
                if not fits(given, wanted):
                    yield (
                        f"{stage}: port '{port}' takes {type_name(wanted)}, but '{endpoint}' gives "
                        f"{type_name(given)}; {_remedy(given, wanted)}"
                    )


def type_of(graph: Graph, endpoint: Endpoint) -> type:
    if endpoint.stage == POOL:
        return Joined
    return graph.stage(endpoint.stage).signature.outputs[endpoint.port]


def _remedy(given: type, wanted: type) -> str:
    if wanted is Joined:
        return "a packer reads a pool: pass graph.pool(samples, features, capacity=...)"
    if given is Joined:
        return "put a packer between the pool and this stage"
    return f"put a stage between them that turns {type_name(given)} into {type_name(wanted)}"


def pool_joins_samples_and_features(graph: Graph) -> Iterator[str]:
    if len(graph.joins) > 1:
        lines = [pool.line for pool in graph.joins]
        yield f"{graph} has pools at {lines}; expected one: join all features in it"
    for pool in graph.joins:
        if pool.disk < 0:
            yield f"pool ({pool.line}): disk={pool.disk}; expected a number of bytes, 0 for no disk"
        kinds = [type_of(graph, endpoint) for endpoint in pool.inputs]
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


def everything_is_read(graph: Graph) -> Iterator[str]:
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


def source_has_an_end(graph: Graph) -> Iterator[str]:
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


def readers_are_possible(graph: Graph) -> Iterator[str]:
    for kind, noun in ((Packer, "packer"), (Objective, "objective")):
        found = [str(stage) for stage in graph.stages if isinstance(stage.what, kind)]
        if len(found) > 1:
            yield f"{graph} has {len(found)} {noun}s: {', '.join(found)}; expected one"
    packers = {stage.name for stage in graph.stages if isinstance(stage.what, Packer)}
    for stage in graph.stages:
        makers = {endpoint.stage for endpoint in stage.producers}
        if isinstance(stage.what, Objective) and not makers <= packers:
            yield f"{stage}: reads {sorted(makers - packers)}; expected the packer's stream alone"
        if POOL in makers and not isinstance(stage.what, Packer):
            yield f"{stage}: reads the pool; only a packer can, put one in between"
        for endpoint in stage.producers:
            if endpoint.port == "gradients" and _is_objective(graph, endpoint):
                yield (
                    f"{stage}: reads '{endpoint}'; gradients go back by graph.feedback alone, "
                    "override GradientReturn.process to see them"
                )
        if isinstance(stage.what, Source | Packer) and stage.replicas > 1:
            yield f"{stage}: has replicas={stage.replicas}; a source or packer has one, it orders"
        if isinstance(stage.what, Encoder):
            readers = [s for s in graph.stages if Endpoint(stage.name, "out") in s.producers]
            if readers and stage.trains:
                yield (
                    f"{readers[0]}: reads the features of '{stage.name}', whose bytes carry the "
                    "gradient back; read them in front of the encoder, or set freeze=True"
                )


def packers_can_stream(graph: Graph) -> Iterator[str]:
    for stage in graph.stages:
        if not isinstance(stage.what, Packer):
            continue
        if stage.what.when not in ("planned", "ready"):
            yield f"{stage}: when is {stage.what.when!r}; expected 'planned' or 'ready'"
        elif stage.what.when == "ready" and type(stage.what).stream is Packer.stream:
            yield (
                f"{stage}: has when='ready', but {type(stage.what).__name__} does not define "
                "stream(); define it, or leave when='planned'"
            )
        elif stage.what.when == "ready":
            yield from _gangs_of_objectives(graph, stage)


def _gangs_of_objectives(graph: Graph, packer: StageSpec) -> Iterator[str]:
    for stage in graph.stages:
        if isinstance(stage.what, Objective) and stage.gang.size > 1:
            yield (
                f"{stage}: is a gang, whose ranks need to know how many packs there will be, and "
                f"{packer} has when='ready'; leave when='planned'"
            )


def _is_objective(graph: Graph, endpoint: Endpoint) -> bool:
    return endpoint.stage != POOL and isinstance(graph.stage(endpoint.stage).what, Objective)
