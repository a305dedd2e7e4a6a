"""Ready-made graphs, one build() per file."""

if __name__ != "flowengine.graphs":
    raise ImportError("import flowengine.graphs, not graphs")
