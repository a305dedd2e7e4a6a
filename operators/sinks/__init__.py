"""Where results go."""

from flowengine.operators.sinks.accuracy import Accuracy

__all__ = ["Accuracy"]
