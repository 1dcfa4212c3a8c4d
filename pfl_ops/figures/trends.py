"""Several runs as lines: over rounds, and over a setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pfl_ops.errors import PflOpsError
from pfl_ops.figures import canvas, style
from pfl_ops.figures.bands import Band, Summary, repetitions, summaries
from pfl_ops.figures.labels import LineEnd, end_labels
from pfl_ops.figures.looks import Look, looks, shared_dashes
from pfl_ops.figures.parts import as_percent, key_below, percent_axis, remark, whole_numbers, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTTED = 12
"""Up to so many places, each has a marker; on longer lines a few markers tell them apart."""

NEAREST_TICKS = 0.04  # of the axis, between two numbers

TARGET_MARGIN = 0.04  # of the axis, between a target and its edge

Points: TypeAlias = Sequence[tuple[float, float]]
"""Rounds and values of single marks."""


def lines(
    series: Mapping[str, Band],
    xlabel: str = "round",
    ylabel: str = "accuracy",
    percent: bool = True,
    target: float | None = None,
    colours: Mapping[str, str] | None = None,
    marks: Mapping[str, Points] | None = None,
) -> Figure:
    """A line a name over rounds: the mean over n repetitions, in a band of ± their standard deviation where n > 1.

    Args:
        series: name -> (rounds [R], values [n, R], or [R] for one repetition); NaN: not measured there.
        percent: values are shares, shown as percents.
        target: a value to be reached, as a dashed line.
        colours: name -> slot or colour, see `colours`; without it by the order of `series`.
        marks: name -> (round, value) of single values from elsewhere, drawn as × in the line's colour.
    Raises:
        PflOpsError: the shapes do not fit, or there is no value.
    """
    found = summaries(series)
    seen = looks(found, colours)
    with style.style():
        note, names = repetitions({name: one.counts for name, one in found.items()})
        figure, axes = canvas.single(_width(names.values()), _height(len(found)))
        _draw_lines(axes, found, seen, marks=marks)
        if percent:
            _as_shares(axes, [found])
        _place_ticks(axes, found)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        remark(axes, note)
        _draw_target(axes, target)
        _name_lines(figure, axes, found, seen, names, target, percent)
    return figure


def panels(
    grid: Mapping[str, Mapping[str, Band]],
    xlabel: str = "round",
    ylabel: str = "accuracy",
    percent: bool = True,
    target: float | None = None,
    colours: Mapping[str, str] | None = None,
    columns: int = 3,
    marks: Mapping[str, Mapping[str, Points]] | None = None,
) -> Figure:
    """Several pictures of `lines` side by side, with one legend and one y axis; a name looks the same in each.

    Args:
        grid: title of a panel -> its lines.
        columns: panels in a row, at most.
        marks: title of a panel -> marks of its lines.
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
        titles = {panel: wrapped(panel, 38) for panel in found}
        higher = 0.17 * max(title.count("\n") for title in titles.values())
        figure = canvas.blank(max(5.2, 3.1 * across + 0.5), (2.5 + higher) * down + 0.4)
        places = figure.subplots(down, across, sharey=True, squeeze=False).ravel().tolist()
        for axes, (panel, series) in zip(places, found.items(), strict=False):
            canvas.fix_ticks(axes)
            _draw_lines(axes, series, seen, most=6, marks=(marks or {}).get(panel))
            _place_ticks(axes, series, 6)
            axes.set_title(titles[panel])
            axes.set_xlabel(xlabel)
        for axes in places[: len(found)]:  # a shared axis has its limits of all panels
            if percent:
                _as_shares(axes, found.values())
            _draw_target(axes, target)
        for axes in places[::across]:
            axes.set_ylabel(ylabel)
        for axes in places[len(found) :]:
            axes.remove()
        drawn = [one for series in found.values() for one in series.values()]
        note = repetitions({"": (min(one.least for one in drawn), max(one.n for one in drawn))})[0]
        key_below(figure, [_handle(look) for look in seen.values()], list(seen), note)
    return figure


def panel(
    series: Mapping[str, Band],
    size: tuple[float, float],
    xlabel: str = "round",
    percent: bool = True,
    colours: Mapping[str, str] | None = None,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Lines as in `lines`, without title and names: for a page that has these beside the picture, see `swatch`.

    Args:
        size: inches. limits: of the y axis, the same for all panels of a picture; None: its own.
    Raises:
        PflOpsError: the shapes do not fit, or there is no value.
    """
    found = summaries(series)
    with style.style():
        figure, axes = canvas.framed(*size, left=0.56, right=0.12, top=0.1, bottom=0.44)
        _draw_lines(axes, found, looks(found, colours), most=6)
        if percent:
            _as_shares(axes, [found], max(3, int(size[1] * 2)))
        ticks = max(3, int(size[0] * 1.8))
        _place_ticks(axes, found, ticks)
        if limits:
            axes.set_ylim(*limits)
        axes.set_xlabel(xlabel)
    return figure


def over(
    series: Mapping[str, Band],
    title: str | None = None,
    xlabel: str = "",
    ylabel: str = "accuracy",
    percent: bool = True,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """A final value over a numeric setting (c, P, τ): means, with ± the standard deviation as error bars.

    Args:
        series: name -> (settings [X], values [n, X], or [X]); NaN: not run.
    Raises:
        PflOpsError: the shapes do not fit, or there is no value.
    """
    found = summaries(series)
    seen = looks(found, colours)
    settings = np.unique(np.concatenate([one.x for one in found.values()]))
    with style.style():
        note, names = repetitions({name: one.counts for name, one in found.items()})
        figure, axes = canvas.single(_width(names.values()), _height(len(found)))
        _draw_lines(axes, found, seen, bars=True)
        _setting_ticks(axes, settings)
        axes.margins(x=0.03)
        if percent:
            _as_shares(axes, [found])
        axes.set(xlabel=xlabel, ylabel=ylabel)
        remark(axes, note)
        canvas.headline(figure, title)
        _name_lines(figure, axes, found, seen, names)
    return figure


def _setting_ticks(axes: Axes, settings: NDArray[np.float64]) -> None:
    """Ticks at the settings, on a logarithmic axis where some would lie on one another; at most 8 on a linear one.

    A number that has no room beside the one before is left out, as where 0 rules a logarithmic axis out.
    """
    steps = np.diff(settings)
    is_close = len(steps) > 1 and steps.min() < NEAREST_TICKS * np.ptp(settings)
    if is_close and settings[0] > 0:
        axes.set_xscale("log")
        axes.set_xticks([], minor=True)
    elif len(settings) > 8:
        return
    places = np.log(settings) if axes.get_xscale() == "log" else settings
    texts, last = [], -np.inf
    for value, place in zip(settings, places, strict=True):
        fits = place - last >= NEAREST_TICKS * np.ptp(places)
        texts.append(f"{value:g}" if fits else "")
        last = place if fits else last
    axes.set_xticks(settings, texts)


def coinciding(series: Mapping[str, Band]) -> tuple[str, ...]:
    """Return the names of lines that are dashed since they coincide with an earlier one; `series`: as for `lines`."""
    return tuple(_dashes(summaries(series)))


def _dashes(series: Mapping[str, Summary]) -> dict[str, Any]:
    return shared_dashes({name: (one.x, one.mean) for name, one in series.items()})


def _width(names: Iterable[str]) -> float:
    """Inches: the axes, and beside them the names."""
    return 6.6 + min(0.075 * max(map(len, names)), 3.0)


def _height(n_lines: int) -> float:
    """Inches: enough for the name of each line beside its end."""
    return float(np.clip(1.4 + 0.17 * n_lines, 3.6, 7.0))


def _draw_lines(
    axes: Axes,
    series: Mapping[str, Summary],
    seen: Mapping[str, Look],
    most: int = 9,
    marks: Mapping[str, Points] | None = None,
    bars: bool = False,
) -> None:
    """Draw lines in bands, or with error bars and a marker at each place."""
    faint = 0.14 if len(series) <= 6 else 0.08
    dashes = _dashes(series)
    for i, (name, one) in enumerate(series.items()):
        look, places = seen[name], len(one.x)
        step = 1 if bars or places <= DOTTED else places // most
        marked = (i * step // len(series), step)  # at other places on each line
        axes.plot(
            one.x, one.mean, color=look.colour, linestyle=dashes.get(name, look.dash), label=name, markevery=marked,
            zorder=3, **look.dots(),
        )  # fmt: skip
        if one.std.any() and bars:
            axes.errorbar(
                one.x, one.mean, one.std, fmt="none", ecolor=look.colour, elinewidth=1.0, capsize=2.5, alpha=0.8,
                zorder=2,
            )  # fmt: skip
        elif one.std.any():
            low, high = one.mean - one.std, one.mean + one.std
            axes.fill_between(one.x, low, high, color=look.colour, alpha=faint, linewidth=0, zorder=2, label=name)
    for name, points in (marks or {}).items():
        if name in seen and points:
            axes.plot(
                *zip(*points, strict=True), color=seen[name].colour, linestyle="", marker="x", markersize=7,
                markeredgewidth=1.6, zorder=4, clip_on=False, label=f"_{name}",
            )  # fmt: skip
    axes.margins(x=0.02)


def _place_ticks(axes: Axes, series: Mapping[str, Summary], most: int = 8) -> None:
    """Ticks of the x axis: whole numbers for rounds and trials, and any numbers for MiB."""
    if all((one.x == np.round(one.x)).all() for one in series.values()):
        whole_numbers(axes, most)
    else:
        axes.locator_params(axis="x", nbins=most)


def _as_shares(axes: Axes, several: Iterable[Mapping[str, Summary]], most: int = 6) -> None:
    percent_axis(axes, most=most, within=[one.mean for series in several for one in series.values()])


def _draw_target(axes: Axes, target: float | None) -> None:
    if target is not None:
        axes.axhline(target, color=style.current().faint, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1.5)
        low, high = axes.get_ylim()
        if not low < target < high:  # limits that were set do not follow the line
            room = TARGET_MARGIN * (max(high, target) - min(low, target))
            axes.set_ylim(min(low, target - room), max(high, target + room))


def _name_lines(
    figure: Figure,
    axes: Axes,
    found: Mapping[str, Summary],
    seen: Mapping[str, Look],
    names: Mapping[str, str],
    target: float | None = None,
    percent: bool = True,
) -> None:
    """Names beside the ends of the lines; where there are too many, a legend below."""
    ends = [LineEnd(names[name], float(one.x[-1]), float(one.mean[-1]), seen[name]) for name, one in found.items()]
    if target is not None:
        text = f"target {as_percent(target) if percent else format(target, 'g')}"
        goal = LineEnd(text, axes.get_xlim()[1], target, Look(style.current().faint, "", (0, (4, 2)), False))
        ends.append(goal)
    if max(len(end.name) for end in ends) > 40 or not end_labels(figure, axes, ends):
        key_below(figure, [_handle(end.look) for end in ends], [end.name for end in ends])


def _handle(look: Look) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=look.colour, linestyle=look.dash, **(look.dots() if look.marker else {}))
