"""The command `flowengine`. Commands import what they need when called, so that help is quick."""
