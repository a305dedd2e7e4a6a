"""Rules on training: optimizers, feedback, the pool's size, evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from flowengine.api import Encoder, Objective, Packer, Source, Trainable
from flowengine.graph.description import POOL, Endpoint, FeedbackSpec, StageSpec
from flowengine.graph.dtype import ITEM_BYTES
from flowengine.graph.gang_rules import packs_at_once
from flowengine.graph.graph import Graph
from flowengine.graph.ports import fits, read_signature, type_name
from flowengine.graph.shape_rules import ancestors
from flowengine.graph.share import capacity_for, share_bytes
from flowengine.graph.size import format_bytes
from flowengine.graph.stream_rules import type_of


def modalities_differ(graph: Graph) -> Iterator[str]:
    seen: dict[str, StageSpec] = {}
    for stage in graph.stages:
        if isinstance(stage.what, Encoder):
            modality = stage.what.modality
            if modality in seen:
                yield f"{stage}: '{seen[modality].name}' encodes '{modality}' already; expected one"
            seen[modality] = stage


def features_fit_the_objective(graph: Graph) -> Iterator[str]:
    for taker in graph.stages:
        if isinstance(taker.what, Objective):
            taken = taker.what.feature_shapes()
            if taken is not None:
                yield from _misfits(graph, taker, taken)


def _misfits(graph: Graph, taker: StageSpec, taken: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    for stage in graph.stages:
        if not isinstance(stage.what, Encoder):
            continue
        modality, given = stage.what.modality, tuple(stage.what.feature_shape())
        if modality not in taken:
            yield (
                f"{stage}: encodes '{modality}', but {taker} takes {sorted(taken)}; give "
                f"it a place for '{modality}'"
            )
        elif given != tuple(taken[modality]):
            yield (
                f"{stage}: a feature row has shape {given}, but {taker} takes "
                f"{tuple(taken[modality])} for '{modality}'; give both the same width"
            )


def weights_can_train(graph: Graph) -> Iterator[str]:
    returned = {feedback.to for feedback in graph.feedbacks}
    for stage in graph.stages:
        if not isinstance(stage.what, Trainable):
            if stage.optimizer is not None or stage.freeze or stage.dtype is not None:
                yield f"{stage}: has no weights; remove optimizer=, freeze= and dtype="
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
        if stage.trains and graph.dtype_of(stage) == "float16":
            yield (
                f"{stage}: trains in float16, where small gradients vanish; pass "
                'dtype="bfloat16", or freeze=True'
            )
    if not any(isinstance(stage.what, Trainable) for stage in graph.stages):
        return
    if any(isinstance(s.what, Encoder) for s in graph.stages) and not graph.joins:
        yield f"{graph} has an encoder and no pool; add graph.pool(samples, features)"


def feedbacks_reach_encoders(graph: Graph) -> Iterator[str]:
    for feedback in graph.feedbacks:
        where = f"feedback ({feedback.line})"
        given, wanted = type_of(graph, feedback.source), _gradient_type(feedback)
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


def pool_holds_a_pack(graph: Graph) -> Iterator[str]:
    packers = [stage.what for stage in graph.stages if isinstance(stage.what, Packer)]
    if not graph.joins or not packers:
        return
    pool = graph.joins[0]
    max_tokens = packers[0].max_tokens
    for stage in graph.stages:
        if isinstance(stage.what, Encoder):
            share = share_bytes(graph, stage)
            item_bytes = ITEM_BYTES.get(graph.dtype_of(stage), 4)
            pack = max_tokens * math.prod(stage.what.feature_shape()) * item_bytes
            packs = packs_at_once(graph, stage)
            needed = (2 * packs - 1) * pack  # So one fits however those before it lie.
            if needed > share:
                enough = capacity_for(graph, stage, share=needed)
                yield (
                    f"pool ({pool.line}): {_packs(packs, max_tokens)} up to "
                    f"{format_bytes(needed)} of features of '{stage.name}', whose share of "
                    f"capacity='{format_bytes(pool.capacity)}' is {format_bytes(share)}; raise "
                    f"capacity= to at least {enough} bytes, or lower max_tokens="
                )


def _packs(count: int, max_tokens: int) -> str:
    if count == 1:
        return f"one pack of {max_tokens} tokens has"
    return f"{count} packs of {max_tokens} tokens, which a gang takes at once, need room for"


def evaluations_are_read(graph: Graph) -> Iterator[str]:
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
