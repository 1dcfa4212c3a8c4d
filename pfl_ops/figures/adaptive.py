"""One drawing for a light and a dark page: its colours are CSS variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pfl_ops.figures import style
from pfl_ops.figures.files import to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREFIX = "--figure-"
COLOUR = re.compile(r"#[0-9a-f]{6}\b")
ATTRIBUTE = re.compile(r' fill="(#[0-9a-f]{6})"')
"""matplotlib writes colours as CSS, but for the ground of hatches; an attribute should not hold a variable."""
CAP_FILL = "#1f77b4"
"""matplotlib's colour for the inside of the caps of error bars, which are lines: it is not visible."""


def to_adaptive_svg(draw: Callable[[], Figure], name: str = "", alt: str = "") -> str | None:
    """Return a picture as one `<svg>` element whose colours are the CSS variables of `adaptive_variables`.

    It is drawn once, in a theme of placeholder colours, which are then replaced by the variables' names.

    Args:
        draw: makes the picture in the theme that is in force. name, alt: see `to_svg`.

    Returns:
        None if the drawing has colours that are not the theme's: pixels, colours between two of the theme, or given
        ones. Such a picture has to be drawn in each theme.
    """
    with style.using(style.PLACEHOLDERS):
        figure = draw()
        if any(artist.get_rasterized() for artist in figure.findobj()):
            return None
        svg = ATTRIBUTE.sub(r' style="fill: \1"', to_svg(figure, name, alt))
    names = {colour.lower(): f"var({PREFIX}{role})" for role, colour in style.PLACEHOLDERS.colours().items()}
    if "<image" in svg or not set(COLOUR.findall(svg)) <= {*names, CAP_FILL}:
        return None
    return COLOUR.sub(lambda found: names.get(found.group(), found.group()), svg)


def adaptive_variables() -> Mapping[str, str]:
    """Return the declarations of the CSS variables in each theme: {"light": "--figure-ink:#222222;...", ...}."""
    return {
        theme.name: ";".join(f"{PREFIX}{role}:{colour}" for role, colour in theme.colours().items())
        for theme in style.THEMES.values()
    }
