"""All that an operator may import."""

from flowengine.api.context import Context
from flowengine.api.operator import GradientReturn, Operator, Packer, Source
from flowengine.api.optimizer import SGD, AdamW, Constant, Cosine, Optimizer, Schedule
from flowengine.api.shape import TransformerShape
from flowengine.api.trainable import Encoder, Objective, Trainable, Whole
from flowengine.api.values import (
    IGNORED,
    Answer,
    Features,
    Gradients,
    Joined,
    Lengths,
    Media,
    Outcome,
    Pack,
    Ports,
    Sample,
    join_samples,
)
from flowengine.errors import SampleError

__all__ = [
    "IGNORED",
    "SGD",
    "AdamW",
    "Answer",
    "Constant",
    "Context",
    "Cosine",
    "Encoder",
    "Features",
    "GradientReturn",
    "Gradients",
    "Joined",
    "Lengths",
    "Media",
    "Objective",
    "Operator",
    "Optimizer",
    "Outcome",
    "Pack",
    "Packer",
    "Ports",
    "Sample",
    "SampleError",
    "Schedule",
    "Source",
    "Trainable",
    "TransformerShape",
    "Whole",
    "join_samples",
]
