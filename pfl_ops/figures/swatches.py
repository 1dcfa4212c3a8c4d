"""A name's line and marker as a small picture, for legends in HTML."""

from __future__ import annotations

import numpy as np

from pfl_ops.figures import style
from pfl_ops.figures.looks import Look, looks

WIDTH, HEIGHT = 30, 12  # px
CORNERS = 40.0  # enlargement at which curves become polygons: their corners are then about a unit apart


def swatch(slot: str) -> str:
    """Return the line and the marker of a slot ("C3", see `colours`) as one `<svg>` element.

    Its colours are the CSS variables `--in-light` and `--in-dark`, which the page's style chooses from; the inside of a
    hollow marker is the page's `--paper`.
    """
    shades = {}
    for name in style.THEMES:
        with style.theme(name):
            shades[name] = looks([slot], {slot: slot})[slot]
    look = shades["light"]
    dash = "" if look.dash == "-" else f' stroke-dasharray="{" ".join(f"{1.6 * part:g}" for part in look.dash[1])}"'
    fill = "var(--paper)" if look.hollow else "currentColor"
    return (
        f'<svg class="swatch" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" aria-hidden="true" '
        f'style="--in-light:{shades["light"].colour};--in-dark:{shades["dark"].colour}">'
        f'<path d="M1 {HEIGHT / 2:g}H{WIDTH - 1}" stroke="currentColor" stroke-width="2" fill="none"{dash}/>'
        f'<path d="{_outline(look)}" stroke="currentColor" stroke-width="1.2" fill="{fill}"/></svg>'
    )


def _outline(look: Look) -> str:
    """The marker as a path around the middle of the swatch."""
    from matplotlib.markers import MarkerStyle
    from matplotlib.transforms import Affine2D

    marker = MarkerStyle(look.marker)
    outline = marker.get_path().transformed(marker.get_transform() + Affine2D().scale(CORNERS))
    factor = 1.45 * look.size / CORNERS
    rings = [np.asarray(ring) * (factor, -factor) + (WIDTH / 2, HEIGHT / 2) for ring in outline.to_polygons()]
    return "".join(f"M{'L'.join(f'{x:.2f} {y:.2f}' for x, y in ring.tolist())}Z" for ring in rings)
