"""Studies: their trials one by one, and the front of those that no other beats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_ops.errors import listed
from pfl_ops.figures import canvas, style
from pfl_ops.figures.onerun import VIEWS, stage_colours
from pfl_ops.figures.parts import percent_axis, whole_numbers
from pfl_ops.statistics import non_dominated
from pfl_ops.units import PERCENT, heading, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME_SIZE = (16.0, 10.0)  # points: width and height of a trial's number
MOST_NAMES = 6  # in one text


def pareto(
    points: ArrayLike, labels: Sequence[str] | None = None, names: tuple[str, str] = VIEWS, chosen: int | None = None
) -> Figure:
    """The trials of a study with two objectives, both to be maximised, and those that no other trial beats.

    Args:
        points: first and second objective of each trial, [n, 2]; NaN: not drawn.
        labels: a short name for each trial, written at the points of the front; none: its number.
        names: what the two objectives are; accuracies are drawn in percent.
        chosen: row of the trial that was chosen.
    """
    table = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    texts = [str(i) for i in range(len(table))] if labels is None else [str(label) for label in labels]
    front = non_dominated(table)
    shades, (first, second, _) = style.current(), stage_colours().values()
    with style.style():
        figure, axes = canvas.single(5.4, 4.6)
        rest = ~front & ~np.isnan(table).any(axis=1)
        axes.scatter(table[rest, 0], table[rest, 1], s=20, color=shades.rest, linewidths=0, label="beaten by another")
        order = np.flatnonzero(front)
        order = order[np.argsort(table[order, 0], kind="stable")]
        x, y = table[order].T
        axes.plot(x, y, color=first, linewidth=1.2, drawstyle="steps-pre", zorder=2)
        axes.scatter(x, y, s=34, color=first, linewidths=0, zorder=3, label="Pareto front (trial)")
        if chosen is not None:
            ring: Any = {"facecolors": "none", "edgecolors": second, "linewidths": 1.6}
            axes.scatter(table[chosen, 0], table[chosen, 1], s=130, **ring, zorder=4, label="chosen")
        axes.grid(True, axis="both")
        axes.margins(0.08)
        for axis, name, values in zip("xy", names, table.T, strict=True):
            if name in VIEWS or unit_of(name) == PERCENT:
                percent_axis(axes, axis, within=[values])
        axes.set(xlabel=names[0], ylabel=names[1])
        figure.legend(loc="outside lower center", ncols=3, handletextpad=0.3)
        _name_front(figure, axes, table[order], [texts[i] for i in order.tolist()])
    return figure


def _name_front(figure: Figure, axes: Axes, points: NDArray[np.float64], names: Sequence[str]) -> None:
    """Write a name beside each point [n, 2] of a front, and one text of all names beside points that lie together."""
    figure.draw_without_rendering()  # where the axes are
    places = axes.transData.transform(points) * 72 / figure.dpi
    groups: list[list[int]] = []
    for i, place in enumerate(places):
        if groups and (np.abs(place - places[groups[-1][-1]]) < NAME_SIZE).all():
            groups[-1].append(i)
        else:
            groups.append([i])
    for group in groups:
        text = listed([names[i] for i in group], MOST_NAMES)
        at, ink = tuple(points[group[-1]].tolist()), style.current().ink
        axes.annotate(text, at, xytext=(6, 5), textcoords="offset points", fontsize=8, color=ink)


def history(
    values: Sequence[float | None],
    states: Sequence[str] | None = None,
    metric: str = "objective",
    maximise: bool = True,
) -> Figure:
    """A study trial by trial, and the best so far.

    Args:
        values: objective of each trial, its last one for a pruned trial; None or NaN: none (failed, running).
        states: "complete", "pruned", or anything else, of each trial; none: complete where there is a value.
        metric: the objective's name.
        maximise: whether larger is better.
    """
    y = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    kinds = np.array(["complete"] * len(y) if states is None else [str(state).lower() for state in states], dtype=str)
    done = (kinds == "complete") & ~np.isnan(y)
    shades, (first, second, _) = style.current(), stage_colours().values()
    with style.style():
        figure, axes = canvas.single(6.6, 3.4)
        x = np.arange(len(y))
        pruned = (kinds == "pruned") & ~np.isnan(y)
        lost = ~done & ~pruned
        if done.any():
            best = np.maximum.accumulate(y[done]) if maximise else np.minimum.accumulate(y[done])
            axes.step(
                np.append(x[done], len(y) - 0.5), np.append(best, best[-1]), where="post", color=first,
                label="best so far", zorder=2,
            )  # fmt: skip
        axes.scatter(x[done], y[done], s=26, color=first, linewidths=0, zorder=3, label="finished")
        if pruned.any():
            axes.scatter(
                x[pruned], y[pruned], s=26, color=shades.faint, marker="x", linewidths=1.2, label="stopped early"
            )
        if lost.any():
            axes.plot(
                x[lost], np.full(int(lost.sum()), 0.015), transform=axes.get_xaxis_transform(), color=second,
                marker="|", markersize=9, linestyle="", label="without a result",
            )  # fmt: skip
        axes.set_xlim(-0.6, max(len(y), 1) - 0.4)
        whole_numbers(axes, 12)
        axes.margins(y=0.1)
        if unit_of(metric) == PERCENT:
            percent_axis(axes, within=[y])
        axes.set(xlabel="trial", ylabel=heading(metric))
        figure.legend(loc="outside lower center", ncols=4, handletextpad=0.5)
    return figure
