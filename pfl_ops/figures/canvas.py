"""Empty figures, whose axes have their place and the colours of the theme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pfl_ops.figures import style
from pfl_ops.system.collector import collect_as_usual

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def blank(width: float, height: float) -> Figure:
    """An empty figure of so many inches, whose parts make room for one another."""
    return _figure(figsize=(width, height), layout="constrained")


def single(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = blank(width, height)
    axes = figure.add_subplot()
    fix_ticks(axes)
    return figure, axes


def framed(width: float, height: float, left: float, right: float, top: float, bottom: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes and margins of so many inches, so that figures of one size can be aligned."""
    figure = _figure(figsize=(width, height))
    inside = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    axes = figure.add_axes(inside)
    fix_ticks(axes)
    return figure, axes


def percent_panels(
    width: float, height: float, title: str | None, top: float, **layout: Any
) -> tuple[Figure, list[Axes]]:
    """Two panels with percents on a shared y axis, room for a legend below, and fixed margins.

    matplotlib's constrained layout measures all texts twice to find margins, which takes as long as drawing them.

    Args:
        width, height: inches. title: above the panels, as in `headline`.
        top: inches above the panels, for their own titles.
        layout: passed to `Figure.subplots`.
    """
    figure = _figure(figsize=(width, height))
    left, right, bottom = 0.88, 0.16, 0.84  # inches: a label and "99.55 %"; half a round's number; labels and a legend
    top += 0.28 if title else 0.0
    inside = {"left": left / width, "right": 1 - right / width, "bottom": bottom / height, "top": 1 - top / height}
    panels = figure.subplots(1, 2, sharey=True, gridspec_kw={**inside, "wspace": 0.06}, **layout)
    for axes in panels:
        fix_ticks(axes)
    headline(figure, title)
    return figure, list(panels)


def fix_ticks(axes: Axes) -> None:
    """Give ticks their colours now: matplotlib makes them when it draws, which may be outside the theme."""
    shades = style.current()
    axes.tick_params(which="both", color=shades.faint, labelcolor=shades.ink, labelsize=style.SMALL)


def headline(figure: Figure, title: str | None) -> None:
    """A title above the whole picture, at its left."""
    if title:
        figure.suptitle(title, x=0.01, ha="left")


def _figure(**settings: Any) -> Figure:
    from pfl_ops.figures.inline import InlineFigure  # matplotlib

    collect_as_usual()  # a figure is a cycle of some thousand objects, and holds its pixels
    return InlineFigure(**settings)
