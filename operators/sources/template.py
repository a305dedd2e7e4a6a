"""From turns to tokens and labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowengine.api import IGNORED
from flowengine.operators.sources.fit import Fit
from flowengine.operators.sources.records import Turn


@dataclass(frozen=True, kw_only=True)
class Template:
    """How a conversation is written; the default is ChatML, which Qwen's models read.

    start: before a turn, with {role}. stop: after it, a target where the assistant speaks.
    after: behind that, never a target. system: what to begin with where the conversation has no
    system turn; None for nothing.
    """

    start: str = "<|im_start|>{role}\n"
    stop: str = "<|im_end|>"
    after: str = "\n"
    system: str | None = None


def encode(
    turns: Sequence[Turn],
    fits: Mapping[str, Sequence[Sequence[Fit]]],
    *,
    tokenizer: Any,
    template: Template,
) -> tuple[list[int], list[int]]:
    """Tokens and labels. Targets are the assistant's words and their stop; by marker, `fits` stand
    in the places of the markers, each of them with all of its parts.

    Parts are tokenised one by one, as they are when the model answers: the start of the
    assistant's turn is never merged with its first word. tokenizer: a transformers or a tokenizers
    object.
    """
    tokens: list[int] = []
    labels: list[int] = []

    def add(ids: Sequence[int], *, is_target: bool = False) -> None:
        tokens.extend(ids)
        labels.extend(ids if is_target else [IGNORED] * len(ids))

    if template.system is not None and all(turn.role != "system" for turn in turns):
        turns = [Turn("system", template.system), *turns]
    left = {marker: iter(each) for marker, each in fits.items()}
    marks = re.compile("|".join(f"({re.escape(marker)})" for marker in fits) or "$^")
    for turn in turns:
        speaks = turn.role == "assistant"
        add(ids_of(tokenizer, template.start.format(role=turn.role)))
        end = 0
        for mark in marks.finditer(turn.text):
            add(ids_of(tokenizer, turn.text[end : mark.start()]), is_target=speaks)
            for fit in next(left[mark[0]]):
                add(fit.tokens)
            end = mark.end()
        add(ids_of(tokenizer, turn.text[end:] + template.stop), is_target=speaks)
        add(ids_of(tokenizer, template.after))
    labels[:1] = [IGNORED]
    return tokens, labels


def ids_of(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a text, without the tokenizer's own beginning and end."""
    if not text:
        return []
    encoded = tokenizer.encode(text, add_special_tokens=False)
    return list(getattr(encoded, "ids", encoded))
