"""Several runs as points: local against global, and client by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_ops.errors import PflOpsError
from pfl_ops.figures import canvas, style
from pfl_ops.figures.bands import moments, numbers, repetitions
from pfl_ops.figures.labels import place_labels
from pfl_ops.figures.looks import Look, looks
from pfl_ops.figures.onerun import VIEWS
from pfl_ops.figures.parts import LETTER, ROW, beside, key_below, percent_axis, remark, whole_numbers, wrapped
from pfl_ops.statistics import non_dominated

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FRONT = "Pareto front of the means"
NESTED = 0.5  # of a mark's size, from one mark to the next around it


def scatter(points: Mapping[str, ArrayLike], colours: Mapping[str, str] | None = None, legend: bool = True) -> Figure:
    """Acc(L) and Acc(G) of each name: repetitions as small dots, their mean with ± standard deviations.

    The Pareto front of the means is drawn: those that no other name beats in both.

    Args:
        points: name -> (Acc(L), Acc(G)) of each repetition [n, 2], or of one [2].
        legend: write the names; False: the page has them beside the picture, see `swatch`.
    Raises:
        PflOpsError: the shapes do not fit, or there is no point.
    """
    clouds = {name: _cloud(name, given) for name, given in points.items()}
    if not clouds:
        raise PflOpsError("there is nothing to draw: no points were given")
    seen = looks(clouds, colours)
    found = {name: moments(cloud) for name, cloud in clouds.items()}
    means = np.array([mean for mean, _ in found.values()])
    unbeaten = non_dominated(means)
    with style.style():
        figure, axes = canvas.single(6.6, 5.0)
        covering = [int((np.abs(means[i + 1 :] - mean) < 1e-9).all(axis=1).sum()) for i, mean in enumerate(means)]
        for (name, (mean, std)), ahead, above in zip(found.items(), unbeaten, covering, strict=True):
            look, cloud = seen[name], clouds[name]
            if len(cloud) > 1:
                axes.scatter(cloud[:, 0], cloud[:, 1], s=9, color=look.colour, alpha=0.4, linewidths=0, zorder=2)
                axes.errorbar(
                    mean[0], mean[1], std[1], std[0], fmt="none", ecolor=look.colour, elinewidth=1.0, alpha=0.75
                )
            large = _large(look)
            large["markersize"] *= 1 + NESTED * above  # marks that coincide lie within one another
            axes.plot(*mean, linestyle="", zorder=5 if ahead else 4, label=name, color=look.colour, **large)
        axes.grid(True, axis="both")
        axes.margins(0.09)
        percent_axis(axes, "x", within=[means[:, 0]])
        percent_axis(axes, "y", within=[means[:, 1]])
        axes.set(xlabel=VIEWS[0], ylabel=VIEWS[1])
        counts = [len(cloud) for cloud in clouds.values()]
        note, names = repetitions({name: (n, n) for name, n in zip(clouds, counts, strict=True)})
        if not legend and len(set(counts)) > 1:  # the names, with their n, are not in the picture
            note = repetitions({"": (min(counts), max(counts))})[0]
        remark(axes, note)
        line = _draw_front(axes, means[unbeaten])
        if not legend:
            return figure
        key_below(figure, [line], [FRONT])
        dots = np.concatenate([*clouds.values(), *(_cross(mean, std) for mean, std in found.values())])
        if not place_labels(figure, axes, means, [names[name] for name in found], dots, bold=unbeaten.tolist()):
            _name_at_the_side(figure, [names[name] for name in found], list(seen.values()), unbeaten.tolist())
    return figure


def distributions(
    values: Mapping[str, ArrayLike], xlabel: str = "accuracy of a client", percent: bool = True
) -> Figure:
    """Draw the spread of values, a row a name: every client as a dot, the quartiles as a box, the median and the mean.

    Args:
        values: name -> one value a client, of any shape (all repetitions together); NaN: a client without samples.
    Raises:
        PflOpsError: there is no value.
    """
    found = {name: _row(name, given) for name, given in values.items()}
    if not found:
        raise PflOpsError("there is nothing to draw: no values were given")
    seen = looks(found)
    with style.style():
        figure, axes = canvas.single(7.2, 0.85 + 0.42 * len(found))
        for i, (name, row) in enumerate(found.items()):
            _draw_row(axes, i, name, row, seen[name])
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_yticks(range(len(found)), [wrapped(name, 36) for name in found])
        _without_y(axes)
        if percent:
            percent_axis(axes, "x", within=found.values())
        axes.set_xlabel(xlabel)
        counts = {len(row) for row in found.values()}
        clients = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{min(counts)}"
        remark(axes, f"quartiles, median, mean (◇) of {clients} value{'s' * (max(counts) > 1)}")
    return figure


def strip(values: ArrayLike, limits: tuple[float, float], percent: bool = True, ticks: bool = True) -> Figure:
    """One row of `distributions` without its name, for a page that stacks such rows.

    Args:
        values: one a client, of any shape; NaN: a client without samples.
        limits: of the x axis, the same for all rows.
        ticks: write the numbers of the x axis below it.
    Raises:
        PflOpsError: there is no value.
    """
    row = _row("a row", values)
    look = looks([""])[""]
    with style.style():
        figure, axes = canvas.framed(
            5.2, 0.34 + 0.22 * ticks, left=0.2, right=0.3, top=0.02, bottom=0.04 + 0.22 * ticks
        )
        _draw_row(axes, 0, "", row, look)
        axes.set_ylim(0.6, -0.6)
        axes.set_yticks([])
        _without_y(axes)
        axes.set_xlim(*limits)
        percent_axis(axes, "x") if percent else whole_numbers(axes)
        axes.tick_params(axis="x", labelbottom=ticks, length=3 if ticks else 0)
        axes.spines["bottom"].set_visible(ticks)
    return figure


def _row(name: str, given: ArrayLike) -> NDArray[np.float64]:
    """The values that are finite, in order."""
    flat = numbers(given, f"'{name}'").reshape(-1)
    row = np.sort(flat[np.isfinite(flat)])
    if not len(row):
        raise PflOpsError(f"'{name}': there is no value to draw")
    return row


def _draw_row(axes: Axes, i: int, name: str, row: NDArray[np.float64], look: Look) -> None:
    """Draw values as dots at height i, their quartiles as a box, the median and the mean."""
    low, middle, high = np.quantile(row, [0.25, 0.5, 0.75])
    axes.plot(
        row, i + 0.5 * beside(len(row)), color=look.colour, marker="o", markersize=3, markeredgewidth=0,
        linestyle="", alpha=0.45, rasterized=len(row) > 3000, label=name, clip_on=False,
    )  # fmt: skip
    axes.fill_betweenx([i - 0.34, i + 0.34], low, high, color=look.colour, alpha=0.18, linewidth=0)
    axes.plot([middle, middle], [i - 0.34, i + 0.34], color=look.colour, linewidth=2.0)
    axes.plot(
        row.mean(), i, marker="D", markersize=5, color=style.current().paper, mec=look.colour, mew=1.3, clip_on=False
    )


def _without_y(axes: Axes) -> None:
    """Rows of names need no y axis: only the lines of the x axis's grid."""
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")


def _draw_front(axes: Axes, best: NDArray[np.float64]) -> Any:
    """The stairs below which another mean is better, on to both ends of the axes; the line, for a legend."""
    best = best[np.argsort(best[:, 0], kind="stable")]
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    x, y = np.array([left, *best[:, 0], best[-1, 0]]), np.array([best[0, 1], *best[:, 1], low])
    (line,) = axes.plot(
        x, y, color=style.current().faint, linewidth=1.0, linestyle=(0, (4, 2)), drawstyle="steps-pre", zorder=1.5,
        label=FRONT,
    )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    return line


def _name_at_the_side(figure: Figure, names: Sequence[str], seen: Sequence[Look], bold: Sequence[bool]) -> None:
    """A legend at the right, for points too close to one another to have their names beside them."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="", color=look.colour, **_large(look)) for look in seen]
    texts = [wrapped(name, 40) for name in names]
    longest = max(len(line) for text in texts for line in text.splitlines())
    width, height = figure.get_size_inches()
    rows = sum(text.count("\n") + 1 for text in texts)
    figure.set_size_inches(width + LETTER * longest, max(height, 1.2 * ROW * rows + 0.6))
    legend = figure.legend(handles, texts, loc="outside right upper", handletextpad=0.3, labelspacing=0.6)
    for text, strong in zip(legend.get_texts(), bold, strict=True):
        text.set_fontweight("bold" if strong else "normal")


def _cross(mean: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points along the error bars of a mean, which names should not cover."""
    along = np.linspace(-1.0, 1.0, 15)[:, None]
    return np.concatenate([mean + along * std * (1.0, 0.0), mean + along * std * (0.0, 1.0)])


def _large(look: Look) -> dict[str, Any]:
    return look.dots() | {"markersize": look.size * 1.75}


def _cloud(name: str, given: ArrayLike) -> NDArray[np.float64]:
    """Points that have both values, [n, 2]."""
    cloud = np.atleast_2d(numbers(given, f"'{name}'"))
    if cloud.ndim != 2 or cloud.shape[1] != 2:
        raise PflOpsError(f"'{name}': points are [n, 2], got {list(cloud.shape)}")
    cloud = cloud[np.isfinite(cloud).all(axis=1)]
    if not len(cloud):
        raise PflOpsError(f"'{name}': there is no point to draw")
    return cloud
