"""Which stage runs which kind of operator."""

from __future__ import annotations

from flowengine.api import Encoder, Objective, Packer, Source
from flowengine.runtime.function_stage import FunctionStage
from flowengine.runtime.planned_packer import PlannedPacker
from flowengine.runtime.ready_packer import ReadyPacker
from flowengine.runtime.site import Site
from flowengine.runtime.source_stage import SourceStage
from flowengine.runtime.stage import Stage
from flowengine.runtime.tensor_encoder import TensorEncoder
from flowengine.runtime.tensor_objective import TensorObjective

_STAGES: tuple[tuple[type, type[Stage]], ...] = (
    (Source, SourceStage),
    (Encoder, TensorEncoder),
    (Objective, TensorObjective),
)


def make_stage(site: Site) -> Stage:
    """The stage at this site."""
    what = site.worker.stage.what
    if isinstance(what, Packer):
        return ReadyPacker(site) if what.when == "ready" else PlannedPacker(site)
    for operator, stage in _STAGES:
        if isinstance(what, operator):
            return stage(site)
    return FunctionStage(site)
