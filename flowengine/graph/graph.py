"""The graph a user writes: one verb, `add`, and what connects the stages.

Building a graph starts nothing. `check` says what is wrong with it; a runtime runs it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowengine.api import GradientReturn, Operator, Optimizer, Source
from flowengine.errors import GraphError
from flowengine.graph.description import (
    POOL,
    Activations,
    BadSamples,
    CheckpointSpec,
    Credits,
    Endpoint,
    EvaluationSpec,
    FeedbackSpec,
    Gang,
    PoolSpec,
    StageSpec,
    Step,
)
from flowengine.graph.dtype import DType
from flowengine.graph.ports import fits, read_signature, type_name
from flowengine.graph.size import parse_bytes


@dataclass(frozen=True)
class Stream:
    """What a stage gives out. `stream["port"]` is one port of a stage that has several."""

    graph: Graph
    stage: str
    port: str | None = None

    def __getitem__(self, port: str) -> Stream:
        return Stream(self.graph, self.stage, port)

    def __repr__(self) -> str:
        return f"Stream({self.stage!r}{f', {self.port!r}' if self.port else ''})"


class Graph:
    """A training pipeline as a graph of operators.

    step: the global batch. steps: how many to train; None trains until the source ends.
    staleness: by how many optimizer steps a trainable encoder's features may be older than the
        weights the plain loop would have used; 0 is the same mathematics as the plain loop.
    clip_norm: bound on the norm of all gradients of all stages together; None does not clip.
    dtype: of weights, features and gradients, for stages that are not given their own.
    """

    def __init__(
        self,
        name: str,
        *,
        step: Step,
        steps: int | None = None,
        staleness: int = 0,
        clip_norm: float | None = None,
        seed: int = 0,
        dtype: DType = "float32",
    ) -> None:
        self.name = name
        self.line = _caller()
        self.step = step
        self.steps = steps
        self.staleness = staleness
        self.clip_norm = clip_norm
        self.seed = seed
        self.dtype: DType = dtype
        self.stages: list[StageSpec] = []
        self.joins: list[PoolSpec] = []
        self.feedbacks: list[FeedbackSpec] = []
        self.evaluations: list[EvaluationSpec] = []
        self.checkpoints: CheckpointSpec | None = None
        self.file: Path | None = None
        self.counts_flops = False

    def add(
        self,
        what: Operator | Callable[..., Any],
        *streams: Stream | Sequence[Stream],
        name: str | None = None,
        replicas: int = 1,
        gang: int | Gang = 1,
        optimizer: Optimizer | None = None,
        freeze: bool = False,
        activations: Activations = "stash",
        window: int | None = None,
        credits: Credits | None = None,
        dtype: DType | None = None,
        bad_samples: BadSamples = "raise",
    ) -> Stream:
        """Adds a stage that runs `what` on these streams, one per input port; the stage's stream.

        A port given a list of streams merges them; several ports are joined by sample id.
        replicas: how many workers run it. gang: how many ranks share its weights (a number of data
            ranks, or a Gang). optimizer, freeze: of a trainable operator.
        activations: keep an encoder's activations until its gradients return ("stash"), or compute
            them again then ("recompute": less memory, one more forward).
        window: how many packs an encoder may have encoded whose gradients it has not taken in;
            None leaves the bound to the pool's capacity.
        credits: bound of each input channel.
        dtype: of the operator's weights, features and their gradients; None for the graph's. In
            "bfloat16" the optimizer steps on float32 masters of the weights; "float16" is for
            frozen operators.
        bad_samples: what becomes of a sample that the operator raises SampleError for: "raise" ends
            the run; Skip(limit=) leaves so many out; "dead-letter" leaves all of them out. What is
            left out stands in the table of dead letters with the reason; any other error ends the
            run. A source that may leave samples out decodes a step's samples before it plans the
            step; another stage has the run go back to its last checkpoint, without the sample.
        """
        if isinstance(what, type):
            raise GraphError(
                f"{_caller()}: {what.__name__} is a class; pass an operator, {what.__name__}(...)"
            )
        if not isinstance(what, Operator) and not callable(what):
            raise GraphError(f"{_caller()}: {what!r} is neither an operator nor a function")
        name = name or _snake_case(getattr(what, "__name__", type(what).__name__))
        try:
            signature = read_signature(what)
        except GraphError as error:
            raise GraphError(f"stage '{name}' ({_caller()}): {error}") from None
        ports = list(signature.inputs)
        if len(streams) != len(ports):
            raise GraphError(
                f"stage '{name}' ({_caller()}): {len(ports)} input port(s) {ports} but "
                f"{len(streams)} stream(s); give one stream (or list of streams) per port"
            )
        inputs = {
            port: [
                self._endpoint(stream, wanted=signature.inputs[port], reader=name)
                for stream in ([given] if isinstance(given, Stream) else given)
            ]
            for port, given in zip(ports, streams, strict=True)
        }
        self.stages.append(
            StageSpec(
                name=name,
                what=what,
                signature=signature,
                inputs=inputs,
                line=_caller(),
                replicas=replicas,
                gang=gang if isinstance(gang, Gang) else Gang(data=gang),
                optimizer=optimizer,
                freeze=freeze,
                activations=activations,
                window=window,
                credits=credits or Credits(),
                dtype=dtype,
                bad_samples=bad_samples,
            )
        )
        return Stream(self, name)

    def connect(self, stream: Stream, *, to: Stream) -> None:
        """Merges one more stream into the input of an existing stage with a single port."""
        stage = self.stage(self._own(to, "connect").stage)
        if len(stage.inputs) != 1:
            raise GraphError(f"{stage}: has {len(stage.inputs)} input ports; connect takes one")
        (port,) = stage.inputs
        wanted = stage.signature.inputs[port]
        stage.inputs[port].append(self._endpoint(stream, wanted=wanted, reader=stage.name))

    def pool(
        self, samples: Stream, *features: Stream, capacity: int | str, disk: int | str = 0
    ) -> Stream:
        """Joins samples with their features by sample id.

        capacity: bound of all payload bytes in memory. disk: bound of those that may be spilled to
        the disk of the run directory when memory runs short; 0 has stages wait instead.
        """
        num_bytes = _parse_size(capacity, "capacity")
        disk_bytes = _parse_size(disk, "disk")
        self.joins.append(
            PoolSpec(
                inputs=[
                    self._endpoint(stream, wanted=None, reader=POOL)
                    for stream in (samples, *features)
                ],
                capacity=num_bytes,
                line=_caller(),
                disk=disk_bytes,
            )
        )
        return Stream(self, POOL)

    def feedback(self, what: GradientReturn, gradients: Stream, *, to: Stream) -> None:
        """Returns these gradients to the features of the encoder `to`, through `what`."""
        if not isinstance(what, GradientReturn):
            raise GraphError(
                f"feedback ({_caller()}): {type(what).__name__} is no GradientReturn; "
                "a feedback edge carries gradients, pass GradientReturn() or a subclass"
            )
        wanted = next(iter(read_signature(what).inputs.values()))
        endpoint = self._endpoint(gradients, wanted=wanted, reader="feedback")
        encoder = self._own(to, "feedback").stage
        self.feedbacks.append(FeedbackSpec(what, endpoint, encoder, _caller()))

    def evaluate(
        self, source: Source[Any], *, through: Stream, samples: int, every: int = 0
    ) -> None:
        """Sends `samples` held-out samples the way of `through`: after every `every` steps (0: not
        in between), and after the last step. Evaluation never trains and is never stale."""
        entry = self._own(through, "evaluate").stage
        self.evaluations.append(EvaluationSpec(source, entry, samples, every, _caller()))

    def checkpoint(self, *, every: int = 0, keep_last: int = 2) -> None:
        """Makes a checkpoint after every `every` steps (0: not in between) and after the last one,
        in the run's directory. The newest `keep_last` are kept."""
        self.checkpoints = CheckpointSpec(every, keep_last, _caller())

    def stage(self, name: str) -> StageSpec:
        """The stage of this name; KeyError if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def dtype_of(self, stage: StageSpec) -> DType:
        """What the stage computes in."""
        return stage.dtype or self.dtype

    def _own(self, stream: Stream, reader: str) -> Stream:
        if not isinstance(stream, Stream):
            raise GraphError(
                f"{reader} ({_caller()}): {stream!r} is no stream; pass what graph.add returned"
            )
        if stream.graph is not self:
            raise GraphError(f"{reader} ({_caller()}): {stream} belongs to another graph")
        return stream

    def _endpoint(self, stream: Stream, *, wanted: Any, reader: str) -> Endpoint:
        self._own(stream, reader)
        if stream.stage == POOL:
            return Endpoint(POOL, "out")
        outputs = self.stage(stream.stage).signature.outputs
        port = stream.port or _pick_port(outputs, wanted)
        if port not in outputs:
            raise GraphError(
                f"{reader} ({_caller()}): '{stream.stage}' has "
                + (f"no output port '{stream.port}'; " if stream.port else "no single output; ")
                + (f"it has {_listed(outputs)}" if outputs else "it is a sink and gives nothing")
            )
        return Endpoint(stream.stage, port)

    def __str__(self) -> str:
        return f"graph '{self.name}' ({self.line})"

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, stages={[stage.name for stage in self.stages]})"


def _parse_size(size: int | str, argument: str) -> int:
    try:
        return parse_bytes(size)
    except GraphError as error:
        raise GraphError(f"pool ({_caller()}): {argument}: {error}") from None


def _pick_port(outputs: dict[str, type], wanted: Any) -> str | None:
    if len(outputs) == 1:
        return next(iter(outputs))
    matching = [name for name, kind in outputs.items() if wanted is not None and fits(kind, wanted)]
    return matching[0] if len(matching) == 1 else None


def _listed(outputs: dict[str, type]) -> str:
    return ", ".join(f"'{name}' ({type_name(kind)})" for name, kind in outputs.items())


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _caller() -> str:
    """File and line of the nearest frame outside this package's graph room."""
    here = Path(__file__).parent
    frame = sys._getframe(1)
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == here:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
