"""The operator library, by shelf: sources, vision, language, packing, sinks."""

if __name__ != "flowengine.operators":
    raise ImportError("import flowengine.operators, not operators")
