"""Graphs at work: stages, steps, and the runtimes that drive them."""

from flowengine.runtime.execute import Runtime, execute

__all__ = ["Runtime", "execute"]
