"""Which stage runs which kind of operator."""

from __future__ import annotations

from flowengine.api import Encoder, Objective, Packer, Source
from flowengine.runtime.encoder_stage import EncoderStage
from flowengine.runtime.function_stage import FunctionStage
from flowengine.runtime.objective_stage import ObjectiveStage
from flowengine.runtime.planned_packer import PlannedPacker
from flowengine.runtime.ready_packer import ReadyPacker
from flowengine.runtime.site import Site
from flowengine.runtime.source_stage import SourceStage
from flowengine.runtime.stage import Stage
from flowengine.runtime.tensor_encoder import TensorEncoder
from flowengine.runtime.tensor_objective import TensorObjective


def make_stage(
    site: Site,
    *,
    encoder: type[EncoderStage] = TensorEncoder,
    objective: type[ObjectiveStage] = TensorObjective,
) -> Stage:
    """The stage at this site, whose encoders and objectives compute so."""
    what = site.worker.stage.what
    if isinstance(what, Packer):
        return ReadyPacker(site) if what.when == "ready" else PlannedPacker(site)
    if isinstance(what, Source):
        return SourceStage(site)
    if isinstance(what, Encoder):
        return encoder(site)
    return objective(site) if isinstance(what, Objective) else FunctionStage(site)
