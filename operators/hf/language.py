"""The language model of a pretrained vision-language model, over packed samples.

Shape letters: T tokens of a pack, C channels, n targets, V words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flowengine.api import IGNORED, Answer, Objective, Pack, TransformerShape
from flowengine.operators.hf.families import family_of
from flowengine.operators.hf.segments import use_segments
from flowengine.operators.hf.shapes import language_shape
from flowengine.operators.hf.tuning import LoRA, load_tuned, origin_of
from flowengine.operators.hf.whole import WholeModel


class PretrainedLanguage(Objective[Any]):
    """The cross entropy of every target, given its sample's earlier tokens and feature rows.

    Loads the language model and its head, and nothing else of the checkpoint.

    checkpoint, frozen, lora, checkpointing: as for PretrainedVision. others: the placeholder ids
    of further modalities, whose encoders give rows of the model's width.
    """

    checkpoint: str
    frozen: Sequence[str] = ()
    lora: LoRA | None = None
    checkpointing: bool = False
    others: Mapping[str, int] = field(default_factory=dict)

    def feature_shapes(self) -> dict[str, tuple[int, ...]]:
        family = family_of(self.checkpoint)
        return {"image": family.feature_shape(), **dict.fromkeys(self.others, (family.width,))}

    def shape(self) -> TransformerShape:
        return language_shape(self.checkpoint)

    def build(self) -> Any:
        family = family_of(self.checkpoint)
        model = load_tuned(
            self.checkpoint,
            family.language,
            frozen=self.frozen,
            lora=self.lora,
            checkpointing=self.checkpointing,
        )
        model.by_segments = use_segments(model.get_submodule(family.text))
        return model

    def origin(self, module: Any) -> dict[str, str]:
        return origin_of(self.checkpoint, module)

    def whole(self, dtype: torch.dtype) -> WholeModel | None:
        """The model as transformers has it; None where adapters or other modalities change it."""
        plain = self.lora is None and not self.others
        return WholeModel(self.checkpoint, dtype) if plain else None

    def loss(self, module: Any, pack: Pack) -> Tensor:
        targets = _targets(pack)
        logits = self.logits(module, pack, targets)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return F.cross_entropy(logits.to(wide), pack.labels[targets], reduction="sum")

    def answers(self, module: Any, pack: Pack) -> list[Answer]:
        targets = _targets(pack)
        predicted = self.logits(module, pack, targets).argmax(-1)
        ends = torch.tensor(list(accumulate(pack.lengths)), device=targets.device)
        cuts = torch.searchsorted(targets, ends)[:-1].tolist()
        guesses = predicted.tensor_split(cuts)
        truths = pack.labels[targets].tensor_split(cuts)
        return [
            Answer(predicted=guess, expected=truth, note=note)
            for guess, truth, note in zip(guesses, truths, pack.notes, strict=True)
        ]

    def logits(self, module: Any, pack: Pack, targets: Tensor) -> Tensor:
        """The logits of these targets: [n, V]."""
        family = family_of(self.checkpoint)
        x_TC = module.get_submodule(family.text).embed_tokens(pack.tokens)
        places = _places(pack, "image", family.placeholders)
        for modality, ids in {
            "image": family.placeholders,
            **{name: (token,) for name, token in self.others.items()},
        }.items():
            rows = pack.features.get(modality)
            if rows is not None and len(rows):
                rows = family.embedded(rows) if modality == "image" else rows
                x_TC = x_TC.index_copy(0, _places(pack, modality, ids), rows.to(x_TC.dtype))
        hidden = family.read(module, x_TC, pack, places)
        logits: Tensor = module.lm_head(hidden[targets - 1])
        return logits


def _targets(pack: Pack) -> Tensor:
    """The places of the targets in the pack: int64 [n]."""
    return (pack.labels != IGNORED).nonzero()[:, 0]


def _places(pack: Pack, modality: str, ids: Sequence[int]) -> Tensor:
    """Where a modality's feature rows stand: int64 [N]; ValueError unless there is one for each."""
    known = torch.tensor(ids, device=pack.tokens.device)
    places = torch.isin(pack.tokens, known).nonzero()[:, 0]
    rows = pack.features.get(modality)
    found = 0 if rows is None else len(rows)
    if len(places) != found:
        raise ValueError(
            f"the pack has {len(places)} placeholders {list(ids)} for '{modality}', but {found} "
            "feature rows; expected one row for each"
        )
    return places
