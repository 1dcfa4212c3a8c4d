"""Order of the methods of a public table: in the published numbers and in ours."""

import math
from collections.abc import Iterator
from itertools import chain

from pfl_ops.papers import Measure
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.reports.pages.document import PageBlock, Row, Table, TableCell
from pfl_ops.statistics import Agreement, agreement

METHOD = "method"
FEWEST = 3
"""Methods of which there is an order to speak of."""


def blocks(run: SuiteRun) -> Iterator[PageBlock]:
    """A table with Kendall's τ of each group of cells that differ in the method alone.

    There is none of a suite with claims, at scale smoke, and of cells on substitute data, with a diverged repetition,
    or of networks that give one answer to all inputs.
    """
    if run.suite.claims or METHOD not in run.suite.axes or run.scale == "smoke":
        return
    rows = [row for measure in run.suite.measures for row in _rows(run, measure)]
    if rows:
        heads = ("cells", "number", "methods", "n", "pairs in the published order", "τ", "95 %")
        note = (
            "τ: Kendall's τ_b of the published numbers and of our means: 1 is the same order, 0 none, −1 the opposite. "
            "95 %: over resampled seeds, which are the same for all methods; nothing is assumed of the published side, "
            "and an interval from few seeds is too short."
        )
        lost = {
            "repetitions diverged": [cell.name for cell in run.suite.cells if run.lost(cell.name)],
            "networks give one answer to all inputs": run.one_answer,
        }
        left_out = [f"Left out, since {why}: {', '.join(cells)}." for why, cells in lost.items() if cells]
        yield Table.of("order", "Order of the methods", heads, rows, [note, *left_out])


def _rows(run: SuiteRun, measure: Measure) -> Iterator[Row]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for cell in run.suite.cells:
        unfit = cell.name in run.stand_ins or cell.name in run.one_answer or run.lost(cell.name)
        if cell.name in run.outcomes and not unfit:
            published = run.published(cell.name, measure)
            if published is not None and published.value is not None:
                labels = tuple(label for axis, label in cell.labels.items() if axis != METHOD)
                groups.setdefault(labels, []).append(cell.name)
    for labels, names in groups.items():
        found = compared(run, measure, names) if len(names) >= FEWEST else None
        if found is not None and found.tau is not None:
            axes = [axis for axis in run.suite.axes if axis != METHOD]
            titles = [run.title(axis, label) for axis, label in zip(axes, labels, strict=True)]
            interval = "–" if found.low is None else f"{found.low:.2f} to {found.high:.2f}".replace("-", "−")
            agreeing = TableCell(f"{found.agreeing} of {found.pairs}", found.agreeing)
            tau = TableCell(f"{found.tau:.2f}".replace("-", "−"), found.tau)
            yield Row.of(", ".join(titles), measure.title, len(names), found.n, agreeing, tau, interval)


def compared(run: SuiteRun, measure: Measure, names: list[str]) -> Agreement | None:
    """Return the agreement of the cells' means with the published numbers, over the seeds that all of them have.

    Returns:
        None: there is no such seed, or a target was never reached in one of them, so that there is no mean.
    """
    values = {name: _by_seed(run, measure, name) for name in names}
    seeds = sorted(set.intersection(*(set(of) for of in values.values())))
    if not seeds:
        return None
    found = [[values[name][seed] for seed in seeds] for name in names]
    if not all(map(math.isfinite, chain(*found))):
        return None
    given = [run.suite.published[name, measure.key].value or 0.0 for name in names]
    return agreement(given, found)


def _by_seed(run: SuiteRun, measure: Measure, name: str) -> dict[int, float]:
    found = {one.seed: one.value(measure.key, run.suite.at, measure.unit) for one in run.outcomes.get(name, ())}
    return {seed: value for seed, value in found.items() if value is not None}
