"""Colours of pictures and charts, by light and by dark.

Charts are drawn in the light colours. In a page, `themed` puts CSS variables in their place, so
that the same drawing is right in both. The hues differ in lightness as well, for those who tell
few hues apart.
"""

from __future__ import annotations

COLOURS = {
    "paper": ("#fefefe", "#15191e"),
    "ink": ("#1f2a33", "#e4e9ee"),
    "dim": ("#5d6b77", "#98a5b1"),
    "grid": ("#dfe4e8", "#2c343c"),
    "line": ("#37474f", "#a9b5c0"),
    "gradient": ("#b3392f", "#ff8a7a"),
    "busy": ("#2468b4", "#5aa2ee"),
    "blocked": ("#d9822b", "#e39a4b"),
    "on_blocked": ("#1e2a33", "#15191e"),
    "starved": ("#c3ccd4", "#48535e"),
    "alarm": ("#c62828", "#ff6b62"),
    "second": ("#8a4fa3", "#c08ad8"),
    "third": ("#2e8b6f", "#4fbf9c"),
    "heat0": ("#f2f5f8", "#20272e"),
    "heat1": ("#d5e5f5", "#233648"),
    "heat2": ("#aecdec", "#274a6b"),
    "heat3": ("#85b3e2", "#2b5f91"),
    "heat4": ("#5f9bd8", "#2f74b8"),
    "source": ("#cfe8d5", "#24452e"),
    "function": ("#eceff1", "#30383f"),
    "encoder": ("#cfe0f5", "#23405f"),
    "pool": ("#fbe7c3", "#55431c"),
    "packer": ("#fdd9c4", "#5a3622"),
    "objective": ("#ddd3ee", "#40325c"),
    "sink": ("#d9d9d9", "#3b4147"),
}
"""name: (light, dark)"""

LIGHT = {name: light for name, (light, _) in COLOURS.items()}
SERIES = ("busy", "blocked", "third", "second", "alarm", "dim", "ink")
"""For lines that have no meaning of their own, in this order, again from the start."""


def heat(share: float) -> str:
    """The colour of a busy share between 0 and 1."""
    return LIGHT[f"heat{min(4, max(0, int(share * 5)))}"]


def themed(svg: str) -> str:
    """The drawing with CSS variables for its colours."""
    for name, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{name})")
    return svg


def plain_colours(svg: str) -> str:
    """A themed drawing in its light colours, for a file of its own."""
    for name, (light, _) in COLOURS.items():
        svg = svg.replace(f"var(--{name})", light)
    return svg


def style_sheet() -> str:
    """The variables, for light and dark, and for a reader who chooses with data-theme."""
    light = "".join(f"--{name}:{value[0]};" for name, value in COLOURS.items())
    dark = "".join(f"--{name}:{value[1]};" for name, value in COLOURS.items())
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
    )
