"""Objectives over text."""

from flowengine.operators.language.transformer import LanguageModel, LanguageTransformer

__all__ = ["LanguageModel", "LanguageTransformer"]
