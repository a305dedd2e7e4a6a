"""Where results go."""

from flowengine.operators.sinks.accuracy import Accuracy
from flowengine.operators.sinks.answer_sheet import AnswerSheet

__all__ = ["Accuracy", "AnswerSheet"]
