"""Where samples come from."""

from flowengine.operators.sources.digit_cards import DigitCards

__all__ = ["DigitCards"]
