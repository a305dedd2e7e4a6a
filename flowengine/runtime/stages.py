"""Which stage runs which kind of operator."""

from __future__ import annotations

from flowengine.api import Encoder, Objective, Packer, Source
from flowengine.runtime.function_stage import FunctionStage
from flowengine.runtime.packer_stage import PackerStage
from flowengine.runtime.site import Site
from flowengine.runtime.source_stage import SourceStage
from flowengine.runtime.stage import Stage
from flowengine.runtime.tensor_encoder import TensorEncoder
from flowengine.runtime.tensor_objective import TensorObjective

_STAGES: tuple[tuple[type, type[Stage]], ...] = (
    (Source, SourceStage),
    (Packer, PackerStage),
    (Encoder, TensorEncoder),
    (Objective, TensorObjective),
)


def make_stage(site: Site) -> Stage:
    """The stage at this site."""
    for operator, stage in _STAGES:
        if isinstance(site.worker.stage.what, operator):
            return stage(site)
    return FunctionStage(site)
