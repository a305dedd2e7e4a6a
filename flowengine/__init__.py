"""A dataflow-graph engine for training multimodal models."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flowengine.graph import Credits, Gang, Graph, Skip, Step, check
    from flowengine.launch import run

__all__ = ["Credits", "Gang", "Graph", "Skip", "Step", "__version__", "check", "run"]

_GRAPH = ("Credits", "Gang", "Graph", "Skip", "Step", "check")


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used, so that the command line starts at once."""
    if name in _GRAPH:
        from flowengine import graph

        return getattr(graph, name)
    if name == "run":
        from flowengine.launch import run

        return run
    raise AttributeError(f"module 'flowengine' has no attribute '{name}'")
