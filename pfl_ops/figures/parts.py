"""What several pictures have in common: percent axes, labels at the ends of lines, remarks on n."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True)
class End:
    """Where a line ends, and what is written there."""

    name: str
    x: float
    y: float
    look: Look


def percent_axis(axes: Axes, which: str = "y") -> None:
    """Shares as percents on the axis "x" or "y", or on "both"."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for name in ("x", "y") if which == "both" else (which,):
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(as_percent))


def as_percent(share: float, _: int | None = None) -> str:
    """0.975 -> "97.5 %"."""
    return f"{100 * share:.4g} %"


def whole_numbers(axes: Axes, most: int = 8) -> None:
    """Ticks of the x axis at whole numbers: rounds, trials."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]))


def within_shares(axes: Axes, values: Iterable[NDArray[np.float64]], which: str = "y") -> None:
    """Keep bands and margins from stretching an axis of shares beyond 0 and 1, where no value is beyond them."""
    seen = np.concatenate([np.ravel(v) for v in values] or [np.empty(0)])
    seen = seen[np.isfinite(seen)]
    if not len(seen) or seen.min() < 0 or seen.max() > 1:
        return
    low, high = axes.get_ylim() if which == "y" else axes.get_xlim()
    limits = max(low, -0.01 if seen.min() < 0.05 else 0.0), min(high, 1.01)
    axes.set_ylim(*limits) if which == "y" else axes.set_xlim(*limits)


def remark(axes: Axes, text: str) -> None:
    """A short remark above the axes, at their right, in the faint ink."""
    if text:
        axes.set_title(text, loc="right", fontsize=8, color=style.current().faint)


def end_labels(figure: Figure, axes: Axes, ends: Sequence[End]) -> bool:
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


def beside(n: int) -> NDArray[np.float64]:
    """Where n dots stand across a strip from -0.5 to 0.5, without chance: neighbours in value take turns."""
    strip: NDArray[np.float64] = np.arange(n, dtype=np.float64) * 0.6180339887 % 1.0 - 0.5
    return strip


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
    figure: Figure, axes: Axes, points: NDArray[np.float64], names: Sequence[str], clouds: Sequence[NDArray[np.float64]]
) -> None:
    """Write a name beside each point [n, 2], where it covers the fewest other names and dots."""
    figure.draw_without_rendering()
    axes.set_ylim(*axes.get_ylim())
    axes.set_xlim(*axes.get_xlim())
    scale = 72 / figure.dpi  # everything in points
    marks = axes.transData.transform(points) * scale
    dots = axes.transData.transform(np.concatenate(list(clouds))) * scale
    frame = np.array([[axes.bbox.x0, axes.bbox.y0], [axes.bbox.x1, axes.bbox.y1]]) * scale
    taken: list[NDArray[np.float64]] = []
    for i in np.argsort(-marks[:, 1], kind="stable").tolist():
        size = np.array([0.6 * style.SMALL * len(names[i]), 1.15 * style.SMALL])
        best: tuple[float, tuple[float, float], str, NDArray[np.float64]] | None = None
        for turn, (dx, dy, side) in enumerate(_PLACES):
            start = marks[i] + (dx, dy) - (size * (_SHARE[side], 0.5))
            box = np.array([start, start + size])
            cost = 10.0 * sum(_overlap(box, other) for other in taken) / size.prod()
            cost += 3.0 * _inside(np.delete(marks, i, axis=0), box, 5.0) + 0.4 * _inside(dots, box, 1.0) + 0.1 * turn
            cost += 20.0 * float((box[0] < frame[0]).any() or (box[1] > frame[1]).any())
            if best is None or cost < best[0]:
                best = cost, (dx, dy), side, box
        assert best is not None
        taken.append(best[3])
        axes.annotate(
            names[i], tuple(points[i].tolist()), xytext=best[1], textcoords="offset points", fontsize=style.SMALL,
            ha=best[2], va="center", zorder=5,
        )  # fmt: skip


_PLACES = (
    *((8.0, 0.0, "left"), (7.0, 7.0, "left"), (7.0, -7.0, "left"), (0.0, 11.0, "center"), (0.0, -11.0, "center")),
    *((-8.0, 0.0, "right"), (-7.0, 7.0, "right"), (-7.0, -7.0, "right"), (9.0, 15.0, "left"), (9.0, -15.0, "left")),
    *((-9.0, 15.0, "right"), (-9.0, -15.0, "right")),
)  # points from the mark, best first
_SHARE = {"left": 0.0, "center": 0.5, "right": 1.0}


def _overlap(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Common area of two boxes [[x0, y0], [x1, y1]]."""
    return float(np.clip(np.minimum(a[1], b[1]) - np.maximum(a[0], b[0]), 0.0, None).prod())


def _inside(points: NDArray[np.float64], box: NDArray[np.float64], margin: float) -> int:
    return int(((points >= box[0] - margin) & (points <= box[1] + margin)).all(axis=1).sum())


def key_below(figure: Figure, handles: Sequence[Any], names: Sequence[str], title: str = "") -> None:
    """A legend below all axes, in as few even rows as the width allows."""
    width = figure.get_size_inches()[0]
    longest = max(map(len, names), default=1)
    columns = max(1, min(len(names), int(width / (0.075 * longest + 0.55))))
    rows = -(-len(names) // columns)
    figure.legend(
        list(handles), list(names), loc="outside lower center", ncols=-(-len(names) // rows), handlelength=2.4,
        columnspacing=1.4, title=title or None, title_fontproperties={"size": 8},
    )  # fmt: skip
