"""The description of a graph, and its checks. Nothing here starts a process or a tensor."""

from flowengine.graph.check import check, find_problems
from flowengine.graph.description import Credits, Gang, Skip, Step
from flowengine.graph.graph import Graph, Stream
from flowengine.graph.load import load_graph

__all__ = [
    "Credits",
    "Gang",
    "Graph",
    "Skip",
    "Step",
    "Stream",
    "check",
    "find_problems",
    "load_graph",
]
