"""Where samples come from."""

from flowengine.operators.sources.digit_cards import WORDS, DigitCards

__all__ = ["WORDS", "DigitCards"]
