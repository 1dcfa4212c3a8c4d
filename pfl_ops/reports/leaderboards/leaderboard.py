"""A benchmark as a report: who is ahead and by how much, how each method was searched, what was chosen."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pfl_ops import figures
from pfl_ops.comparison import LEVEL, TEST_SEEDS, TESTS, Test
from pfl_ops.display import tables
from pfl_ops.display.tables import chance
from pfl_ops.reports.leaderboards.rows import finite, score, table_of
from pfl_ops.reports.pages.document import (
    Document,
    Head,
    ItemList,
    Mark,
    PageBlock,
    PageSection,
    Picture,
    Row,
    Table,
    TableCell,
)
from pfl_ops.units import PERCENT, difference_title, mebibytes, signed, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN_VIEWS = {"local": "local", "global": "global", "worst": "local"}  # column -> view


def leaderboard(
    name: str,
    table: pd.DataFrame,
    traces: pd.DataFrame,
    tests: pd.DataFrame,
    notes: Sequence[str] = (),
    about: Mapping[str, str] | None = None,
    title: str = "Leaderboard",
    generated: str = "",
    costs: pd.DataFrame | None = None,
    importance: Mapping[str, Callable[[], "Figure"]] | None = None,
) -> Document:
    """The report of a benchmark.

    Args:
        name: the benchmark's.
        table: one row a method, best first: rank, method, scored_at, metric, status, validation, test, std, n,
            test_runs, difference, low, high, common, p, p_holm, p_test, local, global, worst, n_local, n_global,
            n_worst, trials, complete, pruned, diverged, failed,
            tuned, restricted, search_seconds, search_samples, test_seconds, sent_bytes, openings, trial, settings,
            error.
        traces: one row a trial: method, trial, state, value, best. tests: one row a test run: method, seed, score,
            local, global, worst.
        notes: what has to be said with the table. about: what all methods share, term and text.
        costs: scores of the searches at equal cost: cost, budget, method, trials, validation, rank; none: not shown.
        importance: method -> draws the importance of its parameters.
        title: at the top. generated: when and by what.
    """
    colours = figures.colours(sorted(table["method"]))
    ahead: list[PageBlock] = [_ranking(table, notes)]
    if points := _local_global(tests[tests["method"].isin(table["method"][table["status"] == "complete"])]):
        caption = (
            "Local against global: each method's own models on their clients' data, and on all data. Dots are seeds, "
            "marks their means."
        )
        ahead.append(Picture("local-global", caption, partial(figures.scatter, points, colours=colours)))
    search: list[PageBlock] = [_spent(table)]
    if costs is not None and len(costs):
        search.append(_equal_cost(costs, table["metric"][0]))
    shares = all(unit_of(metric) == PERCENT for metric in table["metric"])
    if best := _best_so_far(traces):
        draw = partial(figures.lines, best, "trial", "best validation score", percent=shares, colours=colours)
        search.append(Picture("traces", "The search: the best validation score so far, trial by trial.", draw))
    search += [
        Picture(f"importance-{method}", f"Importance of the parameters of {method} for the validation score.", draw)
        for method, draw in (importance or {}).items()
    ]
    sections = [
        PageSection("", tuple(ahead)),
        PageSection("Search", tuple(search)),
        PageSection("Chosen", (_chosen(table),)),
    ]
    if tests["seed"].nunique() > 1:
        sections.append(PageSection("Seed by seed", (_by_seed(table, tests),)))
    if about:
        sections.append(PageSection("What all methods share", (ItemList(tuple(about.items())),)))
    subtitle = f"{len(table)} methods, {tables.searched(table)}"
    return Document(name, title, subtitle, tuple(sections), generated)


def _ranking(table: pd.DataFrame, notes: Sequence[str]) -> Table:
    p_test: Test = table["p_test"][0]
    heads = (
        *("rank", "method", "scored at", "validation", "test", "Acc(L)", "Acc(G)", "worst client"),
        Head(difference_title(table["metric"][0]), note="in test scores, with its 95 % interval, not corrected"),
        Head("p", note=f"{TESTS[p_test]} over seeds, {TEST_SEEDS[p_test]}; corrected for all pairs (Holm)"),
    )
    rows, by_validation = [], tables.ranked_by(table) == "validation"
    for row in table.to_dict("records"):
        first = row["rank"] == 1
        metric = row["metric"]
        best: Mark = "best" if first else ""
        tested = finite(row["test"])
        rows.append(
            Row.of(
                "–" if pd.isna(row["rank"]) else str(row["rank"]),
                _method(row),
                row["scored_at"],
                score(metric, row["validation"], mark=best if by_validation else ""),  # of what the ranks are
                TableCell(tables.tested(row), tested, mark="missing" if tested is None else best),
                *(score(f"{view}/mean", row[name], part=tables.part(row, name)) for name, view in COLUMN_VIEWS.items()),
                _difference(row),
                "" if first else _chance(row["p_holm"]),
            )
        )
    return Table.of("leaderboard", _caption(table), heads, rows, notes, data=table, titles=2)


def _method(row: Mapping[Any, Any]) -> TableCell:
    """The method, with a mark if it is restricted."""
    failed = f"{row['status']}: {row['error']}" if row["error"] else ""
    held = f"restricted: {row['restricted']}" if row["restricted"] else ""
    return TableCell(row["method"] + " *" * bool(held), note="; ".join(filter(None, (failed, held))))


def _caption(table: pd.DataFrame) -> str:
    n = int(table["test_runs"].max())
    over = f"mean ± sample standard deviation over {n} seeds" if n > 1 else "one seed" if n else "not tested"
    return (
        f"Leaderboard after {tables.searched(table)}, {tables.ranking(table)}: scores of the last round; test: {over}"
    )


def _difference(row: Mapping[Any, Any]) -> TableCell:
    if not math.isfinite(row["difference"]):
        return TableCell("")
    low, high, middle = (signed(row[name], row["metric"]) for name in ("low", "high", "difference"))
    between = f" [{low}, {high}]" if math.isfinite(row["low"]) else ""
    return TableCell(middle + between, row["difference"])


NUMBERS = {
    "trials": "trials", "complete": "finished", "pruned": "stopped early", "diverged": "diverged", "failed": "failed",
    "tuned": "settings varied",
}  # fmt: skip


def _spent(table: pd.DataFrame) -> Table:
    """Return the cost of each method's search and test."""
    rows = [
        Row.of(
            row["method"],
            *(row[k] for k in NUMBERS),
            TableCell(f"{row['search_samples']:,}", float(row["search_samples"])),
            TableCell(_seconds(row["search_seconds"]), row["search_seconds"]),
            TableCell(_seconds(row["test_seconds"]), finite(row["test_seconds"])),
            TableCell(mebibytes(row["sent_bytes"]), finite(row["sent_bytes"])),
            row["openings"],
        )
        for row in table.to_dict("records")
    ]
    heads: list[Head | str] = [
        "method",
        *NUMBERS.values(),
        Head(
            "samples",
            note="on which gradients were taken in all trials and runs with new seeds, each time counted; without the "
            "fine-tuning of copies that are only scored",
        ),
        "search",
        "a test run",
        Head("sent", note="up and down, all clients, one test run"),
        Head("test opened", note="choices of the method that the test data were opened for"),
    ]
    caption = "Cost: seconds of all trials and runs with new seeds, and of one test run on average"
    return Table.of("cost", caption, heads, rows, data=table)


def _equal_cost(costs: pd.DataFrame, metric: str) -> Table:
    """The best validation score of each search within the smallest budget that all have spent."""
    rows = tables.equal_cost(costs, metric)
    caption = (
        "Search at equal cost: rank, best validation score (not the test), and trials that ended within the smallest "
        "budget that all methods have spent; runs with new seeds are not counted"
    )
    return table_of("equal-cost", rows, caption, data=costs)


def _chosen(table: pd.DataFrame) -> Table:
    rows = [
        Row.of(row["method"], "–" if pd.isna(row["trial"]) else f"{int(row['trial']):03d}", row["settings"])
        for row in table.to_dict("records")
    ]
    return Table.of("chosen", "Chosen configurations", ("method", "trial", "settings"), rows)


def _by_seed(table: pd.DataFrame, tests: pd.DataFrame) -> Table:
    """Test scores, a column a seed."""
    metrics = dict(zip(table["method"], table["metric"], strict=True))
    scores = tests.pivot(index="method", columns="seed", values="score")
    scores = scores.reindex([method for method in table["method"] if method in scores.index])
    rows = [
        Row.of(str(method), *(score(metrics[method], value) for value in values))
        for method, values in zip(scores.index, scores.to_numpy(), strict=True)
    ]
    heads = ("method", *(f"seed {seed}" for seed in scores.columns))
    return Table.of("seeds", "Test scores seed by seed", heads, rows, data=tests)


def _local_global(tests: pd.DataFrame) -> dict[str, np.ndarray]:
    """{method: [n, 2]} of Acc(L) and Acc(G), where there are both."""
    both = tests.dropna(subset=["local", "global"])
    return {str(method): part[["local", "global"]].to_numpy() for method, part in both.groupby("method", sort=False)}


def _best_so_far(traces: pd.DataFrame) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    there = traces.dropna(subset=["best"])
    return {
        str(method): (part["trial"].to_numpy(), part["best"].to_numpy())
        for method, part in there.groupby("method", sort=False)
    }


def _chance(p: float) -> TableCell:
    return TableCell(chance(finite(p)), finite(p), mark="bad" if p < LEVEL else "")


def _seconds(value: float) -> str:
    """0.2 s, 61 s; a dash if there is no value."""
    return f"{value:,.{int(value < 10)}f} s" if math.isfinite(value) else "–"
