"""The style of all pictures: inks, palettes and sizes, in a light and in a dark theme."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from pfl_ops.errors import unknown

SMALL, NORMAL, LARGE = 8.5, 9.0, 11.0  # points
SINGLE, SEVERAL = ("paper", "ink", "faint", "line", "rest"), ("palette", "classes", "ramp")  # colours of a theme


@dataclass(frozen=True)
class Theme:
    """The colours of a picture.

    Args:
        name: "light" or "dark".
        paper: behind everything. ink: text. faint: axes and remarks. line: the grid. rest: what is not singled out.
        palette: of methods and stages, by slot; found by a search that keeps them apart in OKLab as they are seen
            with and without each colour blindness, the first six furthest.
        classes: of the classes of a data set. ramp: from small to large values, even in lightness.
    """

    name: str
    paper: str
    ink: str
    faint: str
    line: str
    rest: str
    palette: tuple[str, ...]
    classes: tuple[str, ...]
    ramp: tuple[str, ...]

    def colours(self) -> dict[str, str]:
        """Return the name of each colour ("ink", "palette-0") and the colour."""
        single = {name: getattr(self, name) for name in SINGLE}
        return single | {f"{name}-{i}": colour for name in SEVERAL for i, colour in enumerate(getattr(self, name))}

    def with_colours(self, name: str, colours: Iterator[str]) -> Theme:
        """Return a theme of as many colours, which are taken from `colours`."""
        single: dict[str, Any] = {role: next(colours) for role in SINGLE}
        several: dict[str, Any] = {role: tuple(next(colours) for _ in getattr(self, role)) for role in SEVERAL}
        return Theme(name, **single, **several)


LIGHT = Theme(
    name="light",
    paper="#FFFFFF",
    ink="#222222",
    faint="#767676",
    line="#E2E2E2",
    rest="#BBBBBB",
    palette=(
        *("#0072B2", "#D55E00", "#009E73", "#943E75", "#D58D10"),
        *("#8698D6", "#342763", "#810A0C", "#605A2A", "#866857"),
    ),
    classes=(
        *("#332288", "#88CCEE", "#44AA99", "#117733", "#999933"),
        *("#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB"),
    ),
    ramp=("#EAF2F8", "#A3CBE5", "#4C97C9", "#0B4A80"),
)
DARK = Theme(
    name="dark",
    paper="#16191D",
    ink="#E6E8EA",
    faint="#969DA5",
    line="#2D3238",
    rest="#5C636B",
    palette=(
        *("#67A5FE", "#EF8054", "#22D79C", "#AC6FAB", "#F5BD1B"),
        *("#CFFCFB", "#856CEE", "#E6475F", "#F4ED39", "#B0C6E6"),
    ),
    classes=(
        *("#6F63D2", "#88CCEE", "#44AA99", "#2E8B57", "#A3A33A"),
        *("#DDCC77", "#CC6677", "#A8386F", "#C066B8", "#8A9097"),
    ),
    ramp=("#1D2833", "#1F5788", "#4A9FE0", "#D3E9FA"),
)
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}
PLACEHOLDERS = LIGHT.with_colours("placeholders", (f"#{0x9E3779 * i % 0x1000000:06X}" for i in range(1, 100)))
"""A theme for pictures whose colours are replaced by CSS variables (`adaptive.to_adaptive_svg`): no two are equal."""
CLASSES = LIGHT.classes
_CURRENT: ContextVar[Theme] = ContextVar("theme", default=LIGHT)


@contextmanager
def theme(name: str) -> Iterator[Theme]:
    """Draw what is drawn inside in the theme `name`, "light" or "dark"; light when nothing is said.

    Raises:
        PflOpsError: there is no such theme.
    """
    if name not in THEMES:
        raise unknown("theme", name, THEMES)
    with using(THEMES[name]):
        yield THEMES[name]


@contextmanager
def using(shades: Theme) -> Iterator[None]:
    """Draw what is drawn inside in this theme."""
    before = _CURRENT.set(shades)
    try:
        yield
    finally:
        _CURRENT.reset(before)


def current() -> Theme:
    """The theme in which pictures are drawn now."""
    return _CURRENT.get()


def style() -> AbstractContextManager[None]:
    """matplotlib's own defaults and ours, whatever the user's settings are; undone on leaving."""
    import matplotlib

    settings: Any = {name: value for name, value in matplotlib.rcParamsDefault.items() if "backend" not in name}
    return matplotlib.rc_context(settings | _settings(current()))


def _settings(shades: Theme) -> dict[str, Any]:
    return {
        "axes.axisbelow": True,
        "axes.edgecolor": shades.faint,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.labelcolor": shades.ink,
        "axes.labelsize": NORMAL,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": shades.ink,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "figure.constrained_layout.h_pad": 0.07,
        "figure.constrained_layout.w_pad": 0.09,
        "figure.facecolor": shades.paper,
        "figure.titlesize": LARGE,
        "font.family": "DejaVu Sans",  # ships with matplotlib: the same text everywhere
        "font.size": NORMAL,
        "grid.color": shades.line,
        "grid.linewidth": 0.6,
        "legend.fontsize": SMALL,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "lines.markersize": 4,
        "svg.fonttype": "path",  # letters as shapes: the same picture where the font is missing, and in LaTeX
        "svg.hashsalt": "pfl-ops",
        "text.color": shades.ink,
        "xtick.color": shades.faint,
        "xtick.labelcolor": shades.ink,
        "xtick.labelsize": SMALL,
        "ytick.color": shades.faint,
        "ytick.labelcolor": shades.ink,
        "ytick.labelsize": SMALL,
    }
