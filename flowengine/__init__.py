"""A dataflow-graph engine for training multimodal models."""

from flowengine.graph import Credits, Graph, Step, check

__version__ = "0.1.0"

__all__ = ["Credits", "Graph", "Step", "__version__", "check"]
