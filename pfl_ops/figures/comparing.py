"""Several runs in one picture: over rounds, over a setting, local against global, client by client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_ops import metrics
from pfl_ops.errors import PflOpsError
from pfl_ops.figures import style
from pfl_ops.figures.bands import Band, Summary, moments, numbers, repetitions, summaries
from pfl_ops.figures.looks import Look, looks
from pfl_ops.figures.onerun import VIEWS
from pfl_ops.figures.parts import (
    End,
    as_percent,
    beside,
    end_labels,
    key_below,
    percent_axis,
    place_labels,
    remark,
    whole_numbers,
    within_shares,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTTED = 12
"""Up to so many places, each has a marker; on longer lines a few markers tell lines apart."""


def lines(
    series: Mapping[str, Band],
    title: str | None = None,
    xlabel: str = "round",
    ylabel: str = "accuracy",
    percent: bool = True,
    target: float | None = None,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """A line a name over rounds: the mean over n repetitions, in a band of ± their standard deviation where n > 1.

    Args:
        series: name -> (rounds [R], values [n, R], or [R] for one repetition); NaN: not measured there.
        percent: values are shares, shown as percents.
        target: a value to be reached, as a dashed line.
        colours: name -> slot or colour, see `colours`; without it by the order of `series`.
    Raises:
        PflOpsError: the shapes do not fit, or there is no value.
    """
    found = summaries(series)
    seen = looks(found, colours)
    with style.style():
        figure, axes = style.single(7.4, _height(len(found)))
        note, names = repetitions({name: one.n for name, one in found.items()})
        _draw_lines(axes, found, seen, percent)
        whole_numbers(axes)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        remark(axes, note)
        _draw_target(axes, target)
        style.headline(figure, title)
        _name_lines(figure, axes, found, seen, names, target, percent)
    return figure


def panels(
    grid: Mapping[str, Mapping[str, Band]],
    title: str | None = None,
    xlabel: str = "round",
    ylabel: str = "accuracy",
    percent: bool = True,
    target: float | None = None,
    colours: Mapping[str, str] | None = None,
    columns: int = 3,
    share_y: bool = True,
) -> Figure:
    """Several pictures of `lines` side by side under one legend; a name looks the same in each.

    Args:
        grid: title of a panel -> its lines.
        columns: panels in a row, at most.
        share_y: whether all panels have the same y axis.
    Raises:
        PflOpsError: the shapes do not fit, or there is no value.
    """
    if not grid:
        raise PflOpsError("there is nothing to draw: no panel was given")
    found = {panel: summaries(series) for panel, series in grid.items()}
    seen = looks((name for series in found.values() for name in series), colours)
    across = max(1, min(columns, len(found)))
    down = -(-len(found) // across)
    with style.style():
        figure = style.blank(max(5.2, 3.1 * across + 0.5), 2.5 * down + 0.75 + 0.2 * (len(seen) // 5))
        places = figure.subplots(down, across, sharey=share_y, squeeze=False).ravel().tolist()
        for axes, (panel, series) in zip(places, found.items(), strict=False):
            style.fix_ticks(axes)
            _draw_lines(axes, series, seen, percent, most=6)
            whole_numbers(axes, 6)
            axes.set_title(panel)
            _draw_target(axes, target)
        for axes in places[len(found) :]:
            axes.remove()
        figure.supxlabel(xlabel, fontsize=style.NORMAL)
        figure.supylabel(ylabel, fontsize=style.NORMAL)
        counts = {f"{panel}/{name}": one.n for panel, series in found.items() for name, one in series.items()}
        least, most = min(counts.values()), max(counts.values())
        note = repetitions({"": most})[0] if least == most else f"mean ± standard deviation, n = {least} to {most}"
        key_below(figure, [_handle(look) for look in seen.values()], list(seen), note)
        style.headline(figure, title)
    return figure


def over(
    series: Mapping[str, Band],
    title: str | None = None,
    xlabel: str = "",
    ylabel: str = "accuracy",
    percent: bool = True,
    log: bool = False,
    target: float | None = None,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """A final value over a numeric setting (c, P, τ): means, with ± the standard deviation as error bars.

    Args:
        series: name -> (settings [X], values [n, X], or [X]); NaN: not run.
        log: a logarithmic x axis.
        target: a value to be reached, as a dashed line.
    Raises:
        PflOpsError: the shapes do not fit, there is no value, or a setting has no logarithm.
    """
    found = summaries(series)
    seen = looks(found, colours)
    settings = np.unique(np.concatenate([one.x for one in found.values()]))
    if log and settings[0] <= 0:
        raise PflOpsError(f"a logarithmic axis has no place for {settings[0]:g}")
    with style.style():
        figure, axes = style.single(6.8, _height(len(found)))
        note, names = repetitions({name: one.n for name, one in found.items()})
        if log:
            axes.set_xscale("log")
        for name, one in found.items():
            look = seen[name]
            axes.plot(one.x, one.mean, color=look.colour, linestyle=look.dash, label=name, zorder=3, **look.dots())
            if one.std.any():
                axes.errorbar(
                    one.x, one.mean, one.std, fmt="none", ecolor=look.colour, elinewidth=1.0, capsize=2.5, alpha=0.8,
                    zorder=2,
                )  # fmt: skip
        if len(settings) <= 8:
            axes.set_xticks(settings, [f"{value:g}" for value in settings])
            axes.minorticks_off()
        axes.margins(x=0.03)
        if percent:
            percent_axis(axes)
            within_shares(axes, [one.mean for one in found.values()])
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        remark(axes, note)
        _draw_target(axes, target)
        style.headline(figure, title)
        _name_lines(figure, axes, found, seen, names, target, percent)
    return figure


def scatter(
    points: Mapping[str, ArrayLike],
    title: str | None = None,
    xlabel: str = VIEWS[0],
    ylabel: str = VIEWS[1],
    front: bool = True,
    percent: bool = True,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Two values of each name against one another: repetitions as small dots, their mean with ± standard deviations.

    Args:
        points: name -> (x, y) of each repetition [n, 2], or of one [2]; larger is better in both.
        front: draw the Pareto front of the means: those that no other name beats in both.
    Raises:
        PflOpsError: the shapes do not fit, or there is no point.
    """
    clouds = {name: _cloud(name, given) for name, given in points.items()}
    if not clouds:
        raise PflOpsError("there is nothing to draw: no points were given")
    seen = looks(clouds, colours)
    found = {name: moments(cloud) for name, cloud in clouds.items()}
    means = np.array([mean for mean, _ in found.values()])
    shades = style.current()
    with style.style():
        figure, axes = style.single(6.4, 4.8)
        if front:
            best = means[metrics.pareto(means)]
            best = best[np.argsort(best[:, 0], kind="stable")]
            axes.plot(
                *best.T, color=shades.faint, linewidth=1.0, linestyle=(0, (4, 2)), drawstyle="steps-pre", zorder=1.5,
                label="Pareto front of the means",
            )  # fmt: skip
        for name, (mean, std) in found.items():
            look, cloud = seen[name], clouds[name]
            if len(cloud) > 1:
                axes.scatter(cloud[:, 0], cloud[:, 1], s=9, color=look.colour, alpha=0.4, linewidths=0, zorder=2)
                axes.errorbar(
                    mean[0], mean[1], std[1], std[0], fmt="none", ecolor=look.colour, elinewidth=1.0, alpha=0.75
                )
            axes.plot(*mean, linestyle="", zorder=4, label=name, color=look.colour, **_large(look))
        axes.grid(True, axis="both")
        axes.margins(0.09)
        if percent:
            percent_axis(axes, "both")
            within_shares(axes, [means[:, 0]], "x")
            within_shares(axes, [means[:, 1]], "y")
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        note, names = repetitions({name: len(cloud) for name, cloud in clouds.items()})
        remark(axes, note)
        if front:
            (line,) = axes.lines[:1]
            key_below(figure, [line], ["Pareto front of the means"])
        style.headline(figure, title)
        place_labels(figure, axes, means, [names[name] for name in found], list(clouds.values()))
    return figure


def distributions(
    values: Mapping[str, ArrayLike],
    title: str | None = None,
    xlabel: str = "accuracy of a client",
    percent: bool = True,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """How values spread, a row a name: every client as a dot, the quartiles as a box, the median and the mean.

    Args:
        values: name -> one value a client, of any shape (all repetitions together); NaN: a client without samples.
    Raises:
        PflOpsError: there is no value.
    """
    found = {}
    for name, given in values.items():
        flat = numbers(given, f"'{name}'").reshape(-1)
        found[name] = np.sort(flat[np.isfinite(flat)])
        if not len(found[name]):
            raise PflOpsError(f"'{name}': there is no value to draw")
    if not found:
        raise PflOpsError("there is nothing to draw: no values were given")
    seen = looks(found, colours)
    shades = style.current()
    with style.style():
        figure, axes = style.single(7.2, 0.85 + 0.42 * len(found) + 0.3 * bool(title))
        for i, (name, row) in enumerate(found.items()):
            look = seen[name]
            low, middle, high = np.quantile(row, [0.25, 0.5, 0.75])
            axes.plot(
                row, i + 0.5 * beside(len(row)), color=look.colour, marker="o", markersize=3, markeredgewidth=0,
                linestyle="", alpha=0.45, rasterized=len(row) > 3000, label=name,
            )  # fmt: skip
            axes.fill_betweenx([i - 0.34, i + 0.34], low, high, color=look.colour, alpha=0.18, linewidth=0)
            axes.plot([middle, middle], [i - 0.34, i + 0.34], color=look.colour, linewidth=2.0)
            axes.plot(row.mean(), i, marker="D", markersize=5, color=shades.paper, mec=look.colour, mew=1.3)
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_yticks(range(len(found)), list(found))
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(False, axis="y")
        axes.grid(True, axis="x")
        if percent:
            percent_axis(axes, "x")
            within_shares(axes, found.values(), "x")
        axes.set_xlabel(xlabel)
        counts = {len(row) for row in found.values()}
        clients = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{min(counts)}"
        remark(axes, f"quartiles, median, mean (◇) of {clients} values")
        style.headline(figure, title)
    return figure


def _height(n_lines: int) -> float:
    """Inches: enough for the name of each line beside its end."""
    return float(np.clip(1.4 + 0.17 * n_lines, 3.6, 7.0))


def _draw_lines(
    axes: Axes, series: Mapping[str, Summary], seen: Mapping[str, Look], percent: bool, most: int = 9
) -> None:
    for i, (name, one) in enumerate(series.items()):
        look, places = seen[name], len(one.x)
        step = 1 if places <= DOTTED else places // most
        marked = (i * step // len(series), step)  # at other places on each line
        axes.plot(
            one.x, one.mean, color=look.colour, linestyle=look.dash, label=name, markevery=marked, zorder=3,
            **look.dots(),
        )  # fmt: skip
        if one.std.any():
            low, high = one.mean - one.std, one.mean + one.std
            axes.fill_between(one.x, low, high, color=look.colour, alpha=0.13, linewidth=0, zorder=2, label=name)
    axes.margins(x=0.02)
    if percent:
        percent_axis(axes)
        within_shares(axes, [one.mean for one in series.values()])


def _draw_target(axes: Axes, target: float | None) -> None:
    if target is not None:
        axes.axhline(target, color=style.current().faint, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1.5)


def _name_lines(
    figure: Figure,
    axes: Axes,
    found: Mapping[str, Summary],
    seen: Mapping[str, Look],
    names: Mapping[str, str],
    target: float | None,
    percent: bool,
) -> None:
    """Names beside the ends of the lines; where there are too many, a legend below."""
    ends = [End(names[name], float(one.x[-1]), float(one.mean[-1]), seen[name]) for name, one in found.items()]
    if target is not None:
        text = f"target {as_percent(target) if percent else format(target, 'g')}"
        goal = End(text, axes.get_xlim()[1], target, Look(style.current().faint, "", (0, (4, 2)), False))
        ends.append(goal)
    if not end_labels(figure, axes, ends):
        key_below(figure, [_handle(end.look) for end in ends], [end.name for end in ends])


def _handle(look: Look) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=look.colour, linestyle=look.dash, **(look.dots() if look.marker else {}))


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
