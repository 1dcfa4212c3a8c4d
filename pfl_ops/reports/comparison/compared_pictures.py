"""The pictures of a group of a comparison. Their sizes follow the number of lines; names stand beside them as HTML."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd

from pfl_ops import figures
from pfl_ops.comparison import PARTLY_SCORED, Line
from pfl_ops.metric_keys import SUMMED_COSTS, TRAFFIC_COSTS
from pfl_ops.reports.comparison.comparison_data import ComparisonData, Group
from pfl_ops.reports.numbers import target_title, title_of
from pfl_ops.reports.pages.document import Panel, Picture
from pfl_ops.statistics import non_dominated
from pfl_ops.units import MIB, PERCENT, part_of, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 12
"""Lines in one panel; more of them become small multiples, a panel a line."""
SMALL = (2.5, 1.75)  # inches of a panel of small multiples
LOCAL, POOLED = "Acc(L), own data", "Acc(G), pooled data"
SENT = "MiB sent and received by all clients"

Band: TypeAlias = tuple[Sequence[float], np.ndarray]
"""(x [X], values [n, X])"""
Bands: TypeAlias = Mapping[str, Band]
"""Label of a line -> its band."""


def pictures(c: ComparisonData, group: Group, name: Callable[[str], str]) -> Iterator[Picture]:
    """Return the pictures of a group for which there are values.

    Args:
        name: a picture's name in the whole report.
    """
    labels = [line.label for line in group.lines]
    colours = figures.colours(labels)
    shown, metric, title = {LOCAL: "local/mean", POOLED: "global/mean"}, group.metric, title_of(group.metric)
    is_other = metric not in ("acc", *shown.values())
    shown |= {title: metric} if is_other and unit_of(metric) == PERCENT else {}
    curved = group.lines if c.with_curves else ()
    grid = {panel: bands for panel, key in shown.items() if (bands := _bands(curved, key))}
    if grid:
        caption = f"{_over_rounds(grid.values())}{_left_out(curved, shown.values())}"
        yield _curves(name("curves"), caption, grid, labels, colours, "round", True)
    if is_other and metric not in shown.values() and (bands := _in_unit(_bands(curved, metric), metric)):
        caption = _over_rounds([bands], f"{title}{' so far' if metric in SUMMED_COSTS else ''}")
        caption += _left_out(curved, [metric])
        yield _curves(name("metric"), caption, {title: bands}, labels, colours, "round", False, title)
    clouds = {line.label: cloud for line in group.lines if len(cloud := _cloud(line, c)) and not line.unfinished}
    if len(clouds) > 1:
        yield _scatter(name("local-global"), clouds)
    held = {line.label: values for line in group.lines if np.isfinite(values := _by_client(line, c.clients)).any()}
    if held:
        caption = (
            "Client by client, all repetitions: accuracy on their own data after the last round. Each dot is a client; "
            "the box holds the middle half, with the median and the mean (◇)."
        )
        yield _rows(name("clients"), caption, held, "accuracy of a client on its own data", percent=True)
    if c.target is not None:
        heights = {
            line.label + part_of(sum(v is not None for v in rounds.values()), len(rounds)): [
                np.nan if v is None else v for v in rounds.values()
            ]
            for line in group.lines
            if (rounds := line.rounds_to(c.target, c.target_metric))
        }
        if any(np.isfinite(values).any() for values in heights.values()):
            title = target_title(c.target_metric, c.target)
            caption = f"R{title[1:]}: each dot is a repetition that reached it, ◇ their mean; (2 of 3): that many did."
            yield _rows(name("rounds"), caption, heights, title, percent=False)
    if sent := {line.label: band for line in curved if (band := _over_bytes(line)) is not None}:
        caption = "Acc(L) over the MiB that all clients sent and received."
        yield _curves(name("cost"), caption, {LOCAL: sent}, labels, colours, SENT, True)


def _over_rounds(drawn: Iterable[Bands], what: str = "Accuracy") -> str:
    """The caption of curves; `drawn`: those of each panel."""
    there = [np.isfinite(values).sum(axis=0) for bands in drawn for _, values in bands.values()]
    n = sorted({int(count) for counts in there for count in counts if count})
    if n == [1]:
        return f"{what} over rounds, one run each."
    repetitions = f"{n[0]} repetitions" if len(n) == 1 else f"{n[0]} to {n[-1]} repetitions"
    return f"{what} over rounds: means of {repetitions} in a band of ± their sample standard deviation."


def _left_out(lines: Iterable[Line], drawn: Iterable[str]) -> str:
    """Return a sentence if some repetitions have scores in rounds that are not drawn; "": all are."""
    keys = [*drawn]
    some = any(line.is_partly_drawn(key) for line in lines for key in keys)
    return f" {PARTLY_SCORED}" if some else ""


# -- curves ------------------------------------------------------------------------------------------------------------


def _curves(
    name: str,
    caption: str,
    grid: Mapping[str, Bands],
    labels: Sequence[str],
    colours: Mapping[str, str],
    xlabel: str,
    percent: bool,
    ylabel: str = "accuracy",
) -> Picture:
    """Lines over rounds or bytes: a panel a metric; of more than `MOST_LINES` a panel a line with all metrics."""
    drawn = [label for label in labels if any(label in bands for bands in grid.values())]
    if len(drawn) <= MOST_LINES:
        caption += " Lines that coincide are dashed in turn." if any(map(figures.coinciding, grid.values())) else ""
        whole = partial(figures.panels, grid, xlabel=xlabel, ylabel=ylabel, percent=percent, colours=colours)
        draw = partial(figures.panel, size=(4.6, 2.7 + 0.06 * len(drawn)), xlabel=xlabel, percent=percent)
        panels = [
            Panel(title if len(grid) > 1 else "", partial(draw, bands, colours=colours))
            for title, bands in grid.items()
        ]
        legend = {label: colours[label] for label in drawn}
        return Picture(name, caption, whole, panels=tuple(panels), legend=legend)
    legend = figures.colours(grid)
    title, bands = next(iter(grid.items()))
    first = next(iter(bands))  # the best one, where there is a best one
    reference = f"{title}: {first}"
    by_line = {
        label: ({reference: bands[first]} if label != first else {})  # first, so that it hides no line
        | {title: bands[label] for title, bands in grid.items() if label in bands}
        for label in drawn
    }
    legend |= {reference: figures.REST}
    limits = _limits([values for bands in by_line.values() for _, values in bands.values()], percent)
    small = partial(figures.panel, size=SMALL, xlabel=xlabel.split(" ")[0], percent=percent, limits=limits)
    whole = partial(figures.panels, by_line, xlabel=xlabel, ylabel=ylabel, percent=percent, colours=legend, columns=4)
    panels = [Panel(label, partial(small, bands, colours=legend)) for label, bands in by_line.items()]
    caption += f" A panel a setting; in grey, for comparison, {first}."
    return Picture(name, caption, whole, panels=tuple(panels), layout="small", legend=legend)


def _limits(values: Iterable[np.ndarray], percent: bool) -> tuple[float, float]:
    """Limits of an axis that all these values are within, with a margin; shares stay between 0 and 1."""
    seen = np.concatenate([np.ravel(v) for v in values])
    low, high = float(np.nanmin(seen)), float(np.nanmax(seen))
    margin = 0.05 * (high - low) or 0.05
    if percent and low >= 0 and high <= 1:
        return max(low - margin, -0.01), min(high + margin, 1.01)
    return low - margin, high + margin


# -- points and rows ---------------------------------------------------------------------------------------------------


def _scatter(name: str, clouds: Mapping[str, np.ndarray]) -> Picture:
    """Acc(L) against Acc(G); of more than `MOST_LINES` only the Pareto front has colours."""
    caption = (
        "Own data against pooled data: each repetition as a dot, the means as marks, and the Pareto front of the means."
    )
    labels = list(clouds)
    front = non_dominated(np.array([cloud.mean(axis=0) for cloud in clouds.values()]))
    named = labels if len(labels) <= MOST_LINES else [label for label, on in zip(labels, front, strict=True) if on]
    legend = figures.colours(named[:MOST_LINES])
    colours = dict.fromkeys(labels, figures.REST) | legend
    if len(legend) < len(labels):
        caption += " Settings on the front have colours."
        legend = legend | {"other settings": figures.REST}
    draw = partial(figures.scatter, clouds, colours=colours)
    panel = Panel("", partial(_sized, partial(draw, legend=False)))
    return Picture(name, caption, draw, panels=(panel,), legend=legend)


def _sized(draw: "Callable[[], Figure]") -> "Figure":
    figure = draw()
    figure.set_size_inches(4.8, 3.9)
    return figure


def _rows(name: str, caption: str, values: Mapping[str, object], xlabel: str, percent: bool) -> Picture:
    """A row a line; numbers of the axis stand below the last row and every tenth."""
    there = {label: np.asarray(v, dtype=float) for label, v in values.items()}
    there = {label: v for label, v in there.items() if np.isfinite(v).any()}
    limits = _limits(there.values(), percent)
    panels = []
    for label in values:
        if label not in there:
            panels.append(Panel(label, text="never"))
            continue
        i = list(there).index(label) + 1
        ticks = i == len(there) or i % 10 == 0
        panels.append(Panel(label, partial(figures.strip, there[label], limits, percent=percent, ticks=ticks)))
    whole = partial(figures.distributions, there, xlabel=xlabel, percent=percent)
    return Picture(name, caption, whole, panels=tuple(panels), layout="rows")


# -- values ------------------------------------------------------------------------------------------------------------


def _bands(lines: Iterable[Line], metric: str) -> dict[str, Band]:
    """Label -> (rounds [R], values [n, R])."""
    tables = {line.label: line.shared_curve(metric) for line in lines}
    return {label: (table.index.tolist(), table.to_numpy().T) for label, table in tables.items() if table.size}


def _in_unit(bands: Bands, metric: str) -> dict[str, Band]:
    """Bands in the unit of the metric's title; of bytes and seconds, which are compared by their sums, sums so far."""
    factor = unit_of(metric).factor
    return {
        label: (x, factor * (values.cumsum(axis=1) if metric in SUMMED_COSTS else values))
        for label, (x, values) in bands.items()
    }


def _over_bytes(line: Line) -> Band | None:
    """(MiB so far, mean of the repetitions [R], Acc(L) [n, R])."""
    table = line.shared_curve("local/mean")
    sums = [run.history[[*TRAFFIC_COSTS]].sum(axis=1).cumsum() for run in line.runs]
    if not table.size or not line.cost(*TRAFFIC_COSTS):
        return None
    mean = pd.concat(sums, axis=1).mean(axis=1).reindex(table.index)
    return (mean / MIB).tolist(), table.to_numpy().T


def _cloud(line: Line, c: ComparisonData) -> np.ndarray:
    """(Acc(L), Acc(G)) of each repetition that has both, [n, 2]."""
    local, pooled = line.values("local/mean", c.at), line.values("global/mean", c.at)
    return np.array([(local[seed], pooled[seed]) for seed in local if seed in pooled]).reshape(-1, 2)


def _by_client(line: Line, tables: Mapping[str, pd.DataFrame]) -> np.ndarray:
    """Local accuracy of every client in every repetition, in the line's stage; none of a line with diverged seeds."""
    there = [tables[str(run.run_id)] for run in line.counted_runs if run.run_id in tables]
    parts = [table.loc[table["stage"] == line.stage, "local"].to_numpy(dtype=float) for table in there]
    return np.concatenate(parts) if parts else np.array([])
