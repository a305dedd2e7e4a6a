"""The operator library, by shelf: sources, vision, audio, language, packing, sinks, hf."""

if __name__ != "flowengine.operators":
    raise ImportError("import flowengine.operators, not operators")
