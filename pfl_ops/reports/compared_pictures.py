"""The pictures of a comparison."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pfl_ops.reports.compare import Comparison, Line
from pfl_ops.reports.document import Picture
from pfl_ops.reports.numbers import title_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = 12  # lines in a picture, the best ones


def pictures(c: Comparison) -> Iterator[Picture]:
    """Those for which there are values, of the best lines."""
    from pfl_ops import figures

    lines = c.lines[:DRAWN]
    which = "" if len(lines) == len(c.lines) else f" The best {DRAWN} of {len(c.lines)} lines."
    colours = figures.colours([line.label for line in lines])

    shown = {"Acc(L), own data": "local/mean", "Acc(G), pooled data": "global/mean"}
    shown |= {} if c.metric in ("acc", *shown.values()) else {title_of(c.metric): c.metric}
    grid = {panel: bands for panel, metric in shown.items() if (bands := _bands(lines, metric))}
    if grid:
        percent = all(np.nanmax(v) <= 1 for bands in grid.values() for _, v in bands.values())

        def curves() -> "Figure":
            return figures.panels(grid, percent=percent, colours=colours)

        caption = "Accuracy over rounds: means over repetitions in a band of ± their standard deviation."
        yield Picture("curves", caption + which, curves)

    clouds = {line.label: _cloud(line, c) for line in lines}
    clouds = {label: cloud for label, cloud in clouds.items() if len(cloud)}
    if clouds:

        def scatter() -> "Figure":
            return figures.scatter(clouds, colours=colours)

        caption = "Own data against pooled data: each repetition and the means, and the front of those that none beats."
        yield Picture("local-global", caption + which, scatter)

    held = {line.label: _by_client(line, c.clients) for line in lines}
    held = {label: values for label, values in held.items() if np.isfinite(values).any()}
    if held:

        def distributions() -> "Figure":
            return figures.distributions(held, xlabel="accuracy of a client on its own data", colours=colours)

        caption = "Client by client, all repetitions: accuracy on their own data after the last round."
        yield Picture("clients", caption + which, distributions)

    if c.target is not None:
        target, reached = c.target, {line.label: line.rounds_to(c.target, c.target_metric) for line in lines}
        heights = {label: [np.nan if v is None else v for v in r.values()] for label, r in reached.items() if r}
        if any(np.isfinite(values).any() for values in heights.values()):
            label = f"rounds to {title_of(c.target_metric)} ≥ {target:g}"

            def rounds() -> "Figure":
                return figures.bars({"": heights}, ylabel=label, percent=False, colours=colours)

            yield Picture("rounds", f"R{label[1:]}; a dash: never reached.{which}", rounds)

    sent = {line.label: band for line in lines if (band := _over_bytes(line)) is not None}
    if sent:

        def cost() -> "Figure":
            return figures.lines(sent, xlabel="MiB sent and received by all clients", ylabel="Acc(L)", colours=colours)

        yield Picture("cost", f"Acc(L) for the bytes that it took.{which}", cost)


Curve = tuple[Sequence[float], np.ndarray]


def _bands(lines: Iterable[Line], metric: str) -> dict[str, Curve]:
    """Label -> (rounds [R], values [n, R])."""
    tables = {line.label: line.curve(metric) for line in lines}
    return {label: (table.index.tolist(), table.to_numpy().T) for label, table in tables.items() if table.size}


def _over_bytes(line: Line) -> Curve | None:
    """(MiB so far, mean of the repetitions [R], Acc(L) [n, R])."""
    table = line.curve("local/mean")
    sums = [run.history[["cost/up_bytes", "cost/down_bytes"]].sum(axis=1).cumsum() for run in line.runs]
    if not table.size or not line.cost("cost/up_bytes", "cost/down_bytes"):
        return None
    mean = pd.concat(sums, axis=1).mean(axis=1).reindex(table.index)
    return (mean / 2**20).tolist(), table.to_numpy().T


def _cloud(line: Line, c: Comparison) -> np.ndarray:
    """(Acc(L), Acc(G)) of each repetition that has both, [n, 2]."""
    local, pooled = line.values("local/mean", c.at), line.values("global/mean", c.at)
    return np.array([(local[seed], pooled[seed]) for seed in local if seed in pooled]).reshape(-1, 2)


def _by_client(line: Line, tables: Mapping[str, pd.DataFrame]) -> np.ndarray:
    """Local accuracy of every client in every repetition, in the line's stage."""
    there = [tables[run.run_id] for run in line.runs if run.run_id in tables]
    parts = [table.loc[table["stage"] == line.stage, "local"].to_numpy(dtype=float) for table in there]
    return np.concatenate(parts) if parts else np.array([])
