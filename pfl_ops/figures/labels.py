"""Names written beside what they name, never over one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pfl_ops.figures import style
from pfl_ops.figures.looks import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABEL_HEIGHT = 1.32 * style.SMALL
"""Points from one label to the next."""
PLACES = (
    *((8.0, 0.0, "left"), (7.0, 7.0, "left"), (7.0, -7.0, "left"), (0.0, 11.0, "center"), (0.0, -11.0, "center")),
    *((-8.0, 0.0, "right"), (-7.0, 7.0, "right"), (-7.0, -7.0, "right")),
)
"""Places for a name: points from its mark, best first."""
SHARE = {"left": 0.0, "center": 0.5, "right": 1.0}


@dataclass(frozen=True)
class LineEnd:
    """The end of a line, and its label."""

    name: str
    x: float
    y: float
    look: Look


def end_labels(figure: Figure, axes: Axes, ends: Sequence[LineEnd]) -> bool:
    """Write each name right of the axes, beside the end of its line, with its marker; names never overlap.

    Returns:
        False where there are more names than the height holds: nothing is drawn then.
    """
    if not ends:
        return True
    figure.draw_without_rendering()  # how high the axes are, and their limits
    axes.set_ylim(*axes.get_ylim())
    axes.set_xlim(*axes.get_xlim())
    step = LABEL_HEIGHT / (axes.bbox.height / figure.dpi * 72)
    if step * len(ends) > 1.06:
        return False
    from matplotlib.transforms import offset_copy

    to_axes = axes.transData + axes.transAxes.inverted()
    heights = np.array([to_axes.transform((end.x, end.y))[1] for end in ends])
    places = apart(heights, step, 0.0, 1.0)
    start, key, text = (offset_copy(axes.transAxes, figure, x=x, units="points") for x in (9, 13, 20))
    for end, place in zip(ends, places.tolist(), strict=True):
        lead = {
            "arrowstyle": "-",
            "color": end.look.colour,
            "linewidth": 0.7,
            "alpha": 0.55,
            "shrinkA": 0,
            "shrinkB": 2,
        }
        axes.annotate("", (end.x, end.y), xytext=(1.0, place), textcoords=start, arrowprops=lead, annotation_clip=False)
        mark: dict[str, Any] = end.look.dots() if end.look.marker else {"linestyle": end.look.dash, "linewidth": 1.0}
        xs = [1.0] if end.look.marker else [0.99, 1.01]
        axes.plot(
            xs, [place] * len(xs), color=end.look.colour, transform=key, clip_on=False, label="_key",
            **mark,
        )  # fmt: skip
        axes.text(1.0, place, end.name, transform=text, va="center_baseline", fontsize=style.SMALL, clip_on=False)
    return True


def apart(heights: NDArray[np.float64], step: float, low: float, high: float) -> NDArray[np.float64]:
    """Move places as little as possible (in squares) so that neighbours are at least `step` apart, within limits."""
    order = np.argsort(heights, kind="stable")
    slack = step * np.arange(len(heights))
    blocks: list[tuple[float, int]] = []  # mean and length of what has been pushed together
    for height in (heights[order] - slack).tolist():
        mean, n = height, 1
        while blocks and blocks[-1][0] >= mean:
            earlier, m = blocks.pop()
            mean, n = (mean * n + earlier * m) / (n + m), n + m
        blocks.append((mean, n))
    fitted = np.repeat([mean for mean, _ in blocks], [n for _, n in blocks])
    places = np.empty(len(heights))
    places[order] = np.clip(fitted, low, max(high - slack[-1], low)) + slack
    return places


def place_labels(
    figure: Figure,
    axes: Axes,
    points: NDArray[np.float64],
    names: Sequence[str],
    dots: NDArray[np.float64],
    bold: Sequence[bool],
) -> bool:
    """Write a name beside each point [n, 2], where it covers the fewest of the small `dots` [m, 2].

    Returns:
        False where some name would cover another name or another point: nothing is drawn then.
    """
    figure.draw_without_rendering()
    axes.set_ylim(*axes.get_ylim())
    axes.set_xlim(*axes.get_xlim())
    scale = 72 / figure.dpi  # everything in points
    marks = axes.transData.transform(points) * scale
    small = axes.transData.transform(dots) * scale
    low, high = np.reshape(axes.bbox.extents, (2, 2)) * scale
    taken: list[NDArray[np.float64]] = []
    found: dict[int, tuple[float, float, str]] = {}
    for i in np.argsort(-marks[:, 1], kind="stable").tolist():
        size = np.array([(0.7 if bold[i] else 0.63) * style.SMALL * len(names[i]), 1.4 * style.SMALL])
        others, best = np.delete(marks, i, axis=0), np.inf
        for turn, (dx, dy, side) in enumerate(PLACES):
            start = marks[i] + (dx, dy) - size * (SHARE[side], 0.5)
            box = np.array([start, start + size])
            if any(_overlap(box, other) for other in taken) or _inside(others, box, 4.0):
                continue
            cost = (
                0.4 * _inside(small, box, 1.0) + 0.1 * turn + 20.0 * bool((start < low).any() or (box[1] > high).any())
            )
            if cost < best:
                best, found[i], mine = cost, (dx, dy, side), box
        if i not in found:
            return False
        taken.append(mine)
    for i, (dx, dy, side) in found.items():
        axes.annotate(
            names[i], tuple(points[i].tolist()), xytext=(dx, dy), textcoords="offset points", fontsize=style.SMALL,
            ha=side, va="center", zorder=5, fontweight="bold" if bold[i] else "normal",
        )  # fmt: skip
    return True


def _overlap(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Common area of two boxes [[x0, y0], [x1, y1]]."""
    return float(np.clip(np.minimum(a[1], b[1]) - np.maximum(a[0], b[0]), 0.0, None).prod())


def _inside(points: NDArray[np.float64], box: NDArray[np.float64], margin: float) -> int:
    return int(((points >= box[0] - margin) & (points <= box[1] + margin)).all(axis=1).sum())
