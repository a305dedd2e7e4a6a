"""What every operator must keep to, checked on a few samples.

    check_operator(DigitCards())
    check_operator(VisionEncoder(width=16), samples=[source.read(i) for i in range(4)])

raises AssertionError with the rule that is broken. The samples are what the operator would see.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flowengine.api import (
    IGNORED,
    Encoder,
    Joined,
    Lengths,
    Objective,
    Operator,
    Pack,
    Packer,
    Sample,
    Source,
    join_samples,
)
from flowengine.graph.ports import read_signature

TOLERANCE = 1e-9
"""In fp64: far above rounding, far below any mistake."""


def check_operator(
    operator: Operator,
    *,
    samples: Sequence[Sample] = (),
    features: dict[str, Tensor] | None = None,
    num_read: int = 8,
) -> None:
    """Checks an operator of any kind.

    samples: for an encoder, with its media; for an objective, without or with placeholders that
    `features` (one tensor per modality for each sample, by "modality/index") fill. num_read: how
    many samples of a source are read.
    """
    copy = pickle.loads(pickle.dumps(operator))
    assert repr(copy) == repr(operator), f"{operator!r} is another after pickling: {copy!r}"
    read_signature(operator)
    if isinstance(operator, Source):
        check_source(operator, num_read)
    elif isinstance(operator, Packer):
        check_packer(operator)
    elif isinstance(operator, Encoder):
        check_encoder(operator, samples)
    elif isinstance(operator, Objective):
        check_objective(operator, samples, features or {})
    operator.close()
    operator.close()


def check_source(source: Source[Any], num_read: int) -> None:
    """Sample i is a function of i, and its lengths say what it turns out to be."""
    total = source.num_samples()
    for index in reversed(range(num_read if total is None else min(num_read, total))):
        sample, again = source.read(index), source.read(index)
        if not isinstance(sample, Sample):
            continue
        assert torch.equal(sample.tokens, again.tokens), f"sample {index} differs when read again"
        assert torch.equal(sample.labels, again.labels), f"sample {index} differs when read again"
        lengths, targets = source.lengths(index), int((sample.labels != IGNORED).sum())
        found = (len(sample.tokens), len(sample.labels), targets)
        wanted = (lengths.tokens, lengths.tokens, lengths.targets)
        assert found == wanted, f"sample {index}: lengths say {wanted}, it has {found}"
        assert int(sample.labels[0]) == IGNORED, f"sample {index}: its first label is a target"


def check_packer(packer: Packer) -> None:
    """Every sample is in one pack, no pack is too long, and the plan is a function of lengths."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, packer.max_tokens + 1, (64,), generator=draw).tolist()
    lengths = [Lengths(tokens=count, targets=1) for count in tokens]
    plan = packer.plan(lengths)
    assert sorted(index for pack in plan for index in pack) == list(range(64)), plan
    longest = max(sum(tokens[index] for index in pack) for pack in plan)
    assert longest <= packer.max_tokens, f"a pack has {longest} tokens"
    assert packer.plan(list(lengths)) == plan, "the same lengths gave another plan"


def check_encoder(encoder: Encoder[Any, Any], samples: Sequence[Sample]) -> None:
    """A sample's features do not depend on its company, and every weight gets a gradient."""
    torch.manual_seed(0)
    module = encoder.build().to(torch.float64)
    media = [item for sample in samples for item in sample.items(encoder.modality)]
    assert len(media) > 1, f"give at least two samples with {encoder.modality}"
    together = encoder.forward(module, encoder.batch(media))
    alone = torch.cat([encoder.forward(module, encoder.batch([item])) for item in media])
    assert tuple(together.shape[1:]) == tuple(encoder.feature_shape()), together.shape
    assert together.dtype == torch.float64, "forward must compute in its module's dtype"
    difference = float((together - alone).detach().abs().max())
    assert difference <= TOLERANCE, f"features depend on the batch: they differ by {difference}"
    together.sum().backward()  # type: ignore[no-untyped-call]
    missing = [name for name, p in module.named_parameters() if p.grad is None]
    assert not missing, f"no gradient reaches {missing}"


def check_objective(
    objective: Objective[Any], samples: Sequence[Sample], features: dict[str, Tensor]
) -> None:
    """The loss is a sum over targets, and no sample sees another of its pack."""
    torch.manual_seed(0)
    module = objective.build().to(torch.float64)
    assert len(samples) > 1, "give at least two samples"
    singles = [_pack([index], samples, features) for index in range(len(samples))]
    whole = _pack(list(range(len(samples))), samples, features)
    together = objective.loss(module, whole)
    apart = torch.stack([objective.loss(module, single) for single in singles]).sum()
    assert together.ndim == 0, f"the loss has shape {tuple(together.shape)}, expected a scalar"
    difference = float(((together - apart).abs() / apart.abs()).detach())
    assert difference <= TOLERANCE, f"the loss depends on the packing, by {difference} of it"
    answers = objective.answers(module, whole)
    assert len(answers) == len(samples), f"{len(answers)} answers for {len(samples)} samples"


def _pack(indices: list[int], samples: Sequence[Sample], features: dict[str, Tensor]) -> Pack:
    members = []
    for index in indices:
        mine = {
            name.partition("/")[0]: rows.to(torch.float64)
            for name, rows in features.items()
            if name.endswith(f"/{index}")
        }
        members.append(Joined(samples[index], mine))
    return join_samples(tuple(indices), tuple(members))
