"""A suite's curves and other pictures, ours; colours go by method, the same in all pictures of a report."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from pfl_ops import energy, figures
from pfl_ops.comparison import PARTLY_SCORED, Line
from pfl_ops.metric_keys import TARGET_MARK, split_mark
from pfl_ops.papers import Allocation, Bars, Cell, Curves, Energy, Exhibit, Over
from pfl_ops.papers.exhibits import level_number
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.reports.pages.document import Picture, Text
from pfl_ops.results import Result
from pfl_ops.units import unit_of

NAMED = 4  # cells that were not run, up to which a caption names them
NOTHING = "Not drawn: of what it shows, nothing was run."
MARKS = "×: the paper's numbers, those of its last round at the end of ours."
OF_ROWS = "Not drawn: there is no curve of what it shows; runs that are rows of a results file have none."
NO_MEAN = "Not drawn: there is no mean, since a target was never reached"
UNREACHED = "Not drawn: no number of local steps reached the target in every repetition."


def pictures(run: SuiteRun, exhibit: Exhibit, name: str) -> Iterator[Picture | Text]:
    """The pictures of an exhibit; where nothing of it was run, a line that says so."""
    title = getattr(exhibit, "caption", "") or run.suite.title
    drawn = list(DRAWN[type(exhibit)](run, exhibit, name))
    if not drawn:
        yield Text(f"{_sentence(title)} {_why(run, exhibit)}", "note")
        return
    note = "".join(_notes(run, exhibit))
    for picture in drawn:
        yield replace(picture, caption=f"{_sentence(picture.caption or title)}{note}")


def _why(run: SuiteRun, exhibit: Exhibit) -> str:
    """Return the reason why an exhibit has no picture."""
    if never := _never(run, exhibit):
        return f"{NO_MEAN}: {', '.join(never)}."
    if isinstance(exhibit, Curves | Energy):
        if any(one.measures is not None for each in run.outcomes.values() for one in each):
            return OF_ROWS
        if isinstance(exhibit, Energy) and run.outcomes:
            return UNREACHED
    return NOTHING


def _notes(run: SuiteRun, exhibit: Exhibit) -> Iterator[str]:
    """Sentences on the cells that a picture should show and does not, or not as it shows the others.

    Those on substitute data are not named if all that were run are: the page says so first.
    """
    names = {} if isinstance(exhibit, Allocation) else _names(run, exhibit)
    missing = [name for cell, name in names.items() if not run.outcomes.get(cell) and not run.lost(cell)]
    if missing and not isinstance(exhibit, Energy):
        yield f" Not run: {_few(missing)}."
    if lost := [f"{name} ({run.lost(cell)})" for cell, name in names.items() if run.lost(cell)]:
        yield f" Without diverged repetitions: {', '.join(lost)}."
    if never := _never(run, exhibit):
        yield f" Without a mean, since a target was never reached: {', '.join(never)}."
    on_own = any(each for cell, each in run.outcomes.items() if cell not in run.stand_ins)
    moved = [name for cell, name in names.items() if cell in run.stand_ins and run.outcomes.get(cell)]
    if moved and on_own:
        yield f" On substitute data: {_few(moved)}."


def _names(run: SuiteRun, exhibit: Exhibit) -> dict[str, str]:
    """The cells that a picture should show -> by which a caption names them."""
    cells = run.cells(getattr(exhibit, "cells", ""))
    axes = run.varying(cells)
    return {cell.name: run.name(cell, axes) for cell in cells}


def _few(names: Sequence[str]) -> str:
    return "; ".join(names) if len(names) <= NAMED else f"{len(names)} of its cells"


def _never(run: SuiteRun, exhibit: Exhibit) -> list[str]:
    """Names of the cells without a mean of rounds to a target: "FLIU (never in 1 of 3)"."""
    keys = [key for _, key in exhibit.keys] if isinstance(exhibit, Over) else []
    keys += [exhibit.key] if isinstance(exhibit, Bars) else []
    found: dict[str, None] = {}
    for (cell, name), key in product(_names(run, exhibit).items(), keys):
        values = _as_tracked(run, cell, key)
        if never := sum(map(math.isinf, values)):
            found[f"{name} (never in {never} of {len(values)})"] = None
    return [*found]


def _described(run: SuiteRun, key: str) -> str:
    """A tracked key for an axis: its measure's title, or of an accuracy "accuracy (L2, own data)", else the key."""
    titles = [measure.title for measure in run.suite.measures if measure.key == key]
    if not titles and unit_of(key).name != "%":
        return key
    where = {"local": "own data", "global": "pooled data"}
    parts = [where.get(part, part) for part in key.split("/")[1:] if part != "mean"]
    return titles[0] if titles else f"accuracy ({', '.join(parts)})"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _colours(run: SuiteRun, axes: Sequence[str]) -> dict[str, str]:
    """Fixed by all levels of these axes, whichever a picture shows."""
    levels = [[run.title(axis, label) for label in run.suite.labels[axis]] for axis in axes]
    return figures.colours(", ".join(titles) for titles in product(*levels))


def _axes_of_lines(run: SuiteRun, cells: Sequence[Cell], *but: str) -> list[str]:
    """The axes whose levels name a line or a bar: those in which cells differ, without `but`; else the last one."""
    return run.varying(cells, but=but) or [list(run.suite.labels)[-1]]


def _panels(run: SuiteRun, cells: Sequence[Cell], axis: str) -> Iterator[tuple[str, list[Cell]]]:
    """Cells by their level of an axis, with its title; "": all of them."""
    if not axis:
        yield "", list(cells)
        return
    for label in run.suite.labels[axis]:
        there = [cell for cell in cells if cell.labels[axis] == label]
        if there:
            yield run.title(axis, label), there


# -- over rounds -------------------------------------------------------------------------------------------------------


def _curves(run: SuiteRun, exhibit: Curves, name: str) -> Iterator[Picture]:
    cells = run.cells(exhibit.cells)
    axes = _axes_of_lines(run, cells, exhibit.panel)
    grid: dict[str, dict[str, figures.Band]] = {}
    marks: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for title, there in _panels(run, cells, exhibit.panel):
        bands = ((run.name(cell, axes), _band(run.outcomes.get(cell.name, ()), exhibit.key)) for cell in there)
        series = {line: band for line, band in bands if band is not None}
        if series:
            grid[title] = series
            printed = {run.name(cell, axes): _printed(run, cell, exhibit) for cell in there}
            marks[title] = {line: points for line, points in printed.items() if points and line in series}
    if not grid:
        return
    ylabel, colours = exhibit.ylabel or _described(run, exhibit.key), _colours(run, axes)
    axis: dict[str, Any] = {"ylabel": ylabel, "percent": exhibit.percent, "target": exhibit.target, "colours": colours}
    if exhibit.panel:
        draw = partial(figures.panels, grid, marks=marks, **axis)
    else:
        draw = partial(figures.lines, grid[""], marks=marks[""], **axis)
    title = exhibit.caption or run.suite.title
    caption = f"{_sentence(title)} {MARKS}" if any(map(bool, marks.values())) else exhibit.caption
    lines = (Line("", tuple(outcomes)) for cell in cells if (outcomes := run.outcomes.get(cell.name)))
    if any(line.is_partly_drawn(exhibit.key) for line in lines):
        caption = f"{caption or _sentence(title)} {PARTLY_SCORED}"
    alt = f"{ylabel} over rounds of {', '.join(dict.fromkeys(line for series in grid.values() for line in series))}"
    yield Picture(name, caption, draw, alt)


def _printed(run: SuiteRun, cell: Cell, exhibit: Curves) -> list[tuple[float, float]]:
    """The paper's numbers on a curve of ours, as rounds and values; none at smoke and on substitute data.

    A value of the last round is marked at our last round, one of round R at R; rounds to a target at the target.
    """
    found: list[tuple[float, float]] = []
    if run.scale == "smoke" or cell.name in run.stand_ins or run.suite.at != "final":
        return found
    last = run.experiment(cell).training.rounds
    for measure in run.suite.measures:
        key, mark, number = split_mark(measure.key)
        published = run.published(cell.name, measure)
        if key != exhibit.key or published is None or published.value is None:
            continue
        if mark == TARGET_MARK:
            x, y = published.value, float(number)
        elif not mark:
            x, y = float(last), published.value
        elif number.isdigit():
            x, y = float(number), published.value
        else:
            continue
        if x <= last:
            found.append((x, y / measure.unit))
    return found


def _band(outcomes: Sequence[Result], key: str) -> figures.Band | None:
    """Rounds [R] and values [n, R]; None: no repetition has them."""
    table = Line("", tuple(outcomes)).shared_curve(key)
    return (table.index.to_numpy(), table.to_numpy().T) if table.size else None


# -- over a setting, and in bars ---------------------------------------------------------------------------------------


def _over(run: SuiteRun, exhibit: Over, name: str) -> Iterator[Picture]:
    """One picture a panel: error bars don't share an axis well."""
    cells = run.cells(exhibit.cells)
    measured = exhibit.x == "measure"
    axes = _axes_of_lines(run, cells, exhibit.panel, *([] if measured else [exhibit.x]))
    several = len(exhibit.keys) > 1  # each a place on the x axis
    ylabel = exhibit.ylabel or ("value" if several else _described(run, exhibit.keys[0][1]))
    for i, (title, there) in enumerate(_panels(run, cells, exhibit.panel)):
        points: dict[str, dict[float, list[float]]] = {}
        for cell in there:
            line = points.setdefault(run.name(cell, axes), {})
            for x, key in _places(run, cell, exhibit):
                line[x] = _with_mean(_as_tracked(run, cell.name, key))
        series = {line: band for line, band in ((line, _stack(values)) for line, values in points.items()) if band}
        if series:
            draw = partial(
                figures.over, series, title or None, exhibit.xlabel or exhibit.x, ylabel, exhibit.percent,
                colours=_colours(run, axes),
            )  # fmt: skip
            caption = f"{exhibit.caption.rstrip('.')}: {title}" if title and exhibit.caption else exhibit.caption
            alt = f"{ylabel} over {exhibit.xlabel or exhibit.x} of {', '.join(series)}"
            yield Picture(f"{name}-{i + 1}" if exhibit.panel else name, caption, draw, alt)


def _places(run: SuiteRun, cell: Cell, exhibit: Over) -> Sequence[tuple[float, str]]:
    """The place and the key of each point of a cell."""
    if exhibit.x == "measure":
        return exhibit.keys
    number = level_number(run.title(exhibit.x, cell.labels[exhibit.x]))
    return [] if number is None else [(number, exhibit.keys[0][1])]


def _as_tracked(run: SuiteRun, cell: str, key: str) -> list[float]:
    """A number of each repetition, an accuracy as a share. Rows of a results file have it in the paper's unit."""
    unit = next((measure.unit for measure in run.suite.measures if measure.key == key), 1.0)
    values = (one.value(key, run.suite.at, unit) for one in run.outcomes.get(cell, ()))
    is_round = TARGET_MARK in key  # the round in which a target is reached; the target is in the paper's unit
    return [value if is_round else value / unit for value in values if value is not None]


def _with_mean(values: list[float]) -> list[float]:
    """The values, or none if one is infinite: the mean of the repetitions that reached a target is too good."""
    return values if np.isfinite(values).all() else []


def _stack(values: Mapping[float, Sequence[float]]) -> figures.Band | None:
    """Settings [X] and values [n, X], NaN where one was repeated less often."""
    n = max(map(len, values.values()), default=0)
    if not n:
        return None
    x = sorted(values)
    return np.array(x), np.array([[values[at][i] if i < len(values[at]) else np.nan for at in x] for i in range(n)])


def _bars(run: SuiteRun, exhibit: Bars, name: str) -> Iterator[Picture]:
    cells = run.cells(exhibit.cells)
    axes = _axes_of_lines(run, cells, exhibit.group)
    measure = run.suite.measure(exhibit.key)
    unit = 1 / measure.unit if exhibit.percent else 1.0
    values = {
        title: {run.name(cell, axes): np.array(_with_mean(run.values(cell.name, measure))) * unit for cell in there}
        for title, there in _panels(run, cells, exhibit.group)
    }
    if not any(len(bar) for group in values.values() for bar in group.values()):
        return
    ylabel = exhibit.ylabel or measure.title
    draw = partial(figures.bars, values, ylabel=ylabel, percent=exhibit.percent, colours=_colours(run, axes))
    yield Picture(name, exhibit.caption, draw, f"{ylabel} of {', '.join(next(iter(values.values())))}")


# -- partitions and energy ---------------------------------------------------------------------------------------------


def _allocation(run: SuiteRun, exhibit: Allocation, name: str) -> Iterator[Picture]:
    counts = run.counts(exhibit.cell)
    if counts is not None:
        yield Picture(name, exhibit.caption, partial(figures.partition, counts), "samples of each client by class")


def _energy(run: SuiteRun, exhibit: Energy, name: str) -> Iterator[Picture]:
    efforts = [
        _effort(run, cell, exhibit, outcome) for cell in run.suite.cells for outcome in run.outcomes.get(cell.name, ())
    ]
    found = [effort for effort in efforts if effort is not None]
    if not found:
        return
    grid = energy.grid(
        found, snr_db=exhibit.snr_db, bandwidth=exhibit.bandwidth, power=exhibit.power, step_energy=exhibit.step_energy
    )
    best = np.where(grid.best > 0, grid.best, np.nan)
    if np.isnan(best).all():
        return
    rows, columns = [f"{db:g}" for db in exhibit.snr_db], [f"{w / 1e6:g}" for w in exhibit.bandwidth]
    label = "local steps of least energy"
    draw = partial(figures.heat, best, rows, columns, xlabel="bandwidth (MHz)", ylabel="SNR (dB)", label=label)
    yield Picture(name, exhibit.caption, draw, f"{label} by SNR and bandwidth")


DRAWN: Mapping[type, Callable[..., Iterator[Picture]]] = {
    Curves: _curves, Over: _over, Bars: _bars, Allocation: _allocation, Energy: _energy,
}  # fmt: skip
"""Exhibit -> its pictures."""


def _effort(run: SuiteRun, cell: Cell, exhibit: Energy, outcome: Result) -> energy.Effort | None:
    """The cost of reaching the target; None: this was not tracked."""
    steps = run.experiment(cell).training.local_steps
    sent, clients = outcome.by_round("cost/up_bytes"), outcome.by_round("cost/clients")
    rounds = outcome.value(f"{exhibit.key}@{exhibit.target}")
    if steps is None or rounds is None or not sum(clients.values()):
        return None
    bits = 8 * sum(sent.values()) / sum(clients.values())
    return energy.Effort(steps, int(rounds) if np.isfinite(rounds) else None, bits)
