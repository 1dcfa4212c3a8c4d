"""A table in a paper's layout: each number ours, with the paper's and the difference below it."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from typing import TypeAlias

import pandas as pd

from pfl_ops.papers import SCALES, Cell, Grid, Measure
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.reports.pages.document import Head, Row, Table, TableCell
from pfl_ops.statistics import mean_std
from pfl_ops.units import signed_number

MEASURE = "measure"
NEVER = "never"
NOT_RUN = "not run"
Place: TypeAlias = tuple[str, ...]
"""Labels of some of the axes, the measure's key among them."""


@dataclass(frozen=True)
class TableLayout:
    """The layout of an exhibit that is a table."""

    run: SuiteRun
    grid: Grid

    def table(self, name: str) -> Table:
        """Return the table, with its file's name."""
        rows = [row for row in self._places(self.grid.rows) if any(at[1] == row for at in self._numbers)]
        columns = [column for column in self._places(self.grid.columns) if any(at[2] == column for at in self._numbers)]
        body: list[Row] = []
        said: set[str] = set()  # cells of which the table has said that they were not run
        for block in self._places(self.grid.blocks):
            there = [row for row in rows if any(at[:2] == (block, row) for at in self._numbers)]
            if block and there:
                title = ", ".join(self._title(axis, label) for axis, label in zip(self.grid.blocks, block, strict=True))
                body.append(Row(title=title, kind="block"))
            best = {column: self._best(block, column, there) for column in columns}
            for i, row in enumerate(there):
                rule = i > 0 and len(row) > 1 and row[0] != there[i - 1][0]
                numbers = [self._numbers.get((block, row, column)) for column in columns]
                entries = [
                    entry(self.run, *number, best=row in best[column]) if number else TableCell()
                    for column, number in zip(columns, numbers, strict=True)
                ]
                titles, entries = _without(list(self._titles(row, there[i - 1] if i else None)), entries)
                entries = [_once(one, number, said) for one, number in zip(entries, numbers, strict=True)]
                body.append(Row((*titles, *entries), kind="rule" if rule else ""))
        return Table(
            name=name,
            caption=self.grid.caption or self.run.suite.title,
            head=self._head(columns),
            rows=tuple(body),
            notes=tuple(legend(self.run, self._measures)),
            data=data(self.run, self._cells, self._measures),
            titles=len(self.grid.rows),
        )

    # -- where things stand --------------------------------------------------------------------------------------------

    @cached_property
    def _measures(self) -> list[Measure]:
        return [self.run.suite.measure(key) for key in self.grid.measures] or list(self.run.suite.measures)

    @cached_property
    def _cells(self) -> list[Cell]:
        return self.run.cells(self.grid.cells)

    def _labels(self, axis: str) -> list[str]:
        return [measure.key for measure in self._measures] if axis == MEASURE else list(self.run.suite.labels[axis])

    def _places(self, axes: Sequence[str]) -> list[Place]:
        return list(product(*map(self._labels, axes)))

    @cached_property
    def _numbers(self) -> dict[tuple[Place, Place, Place], tuple[Cell, Measure]]:
        """(block, row, column) -> the cell and the measure that stand there, where the suite has the cell."""
        cells = {tuple(cell.labels.values()): cell for cell in self._cells}
        axes = (*self.grid.blocks, *self.grid.rows, *self.grid.columns)
        found = {}
        for block, row, column in product(*map(self._places, (self.grid.blocks, self.grid.rows, self.grid.columns))):
            at = dict(zip(axes, (*block, *row, *column), strict=True))
            measure = self.run.suite.measure(at[MEASURE]) if MEASURE in at else self._measures[0]
            labels = tuple(at.get(axis, levels[0]) for axis, levels in self.run.suite.labels.items())
            if labels in cells:
                found[block, row, column] = cells[labels], measure
        return found

    def _title(self, axis: str, label: str) -> str:
        return self.run.suite.measure(label).title if axis == MEASURE else self.run.title(axis, label)

    def _titles(self, row: Place, before: Place | None) -> Iterator[TableCell]:
        """The titles of a row; the outer ones once for all rows that share them."""
        for i, (axis, label) in enumerate(zip(self.grid.rows, row, strict=True)):
            again = before is not None and i < len(row) - 1 and row[: i + 1] == before[: i + 1]
            yield TableCell("" if again else self._title(axis, label))

    def _head(self, columns: Sequence[Place]) -> tuple[tuple[Head, ...], ...]:
        """A row for each axis of the columns; measures that begin with one word ("L1 Acc") are gathered under it."""
        titles = [
            [self._title(axis, label) for axis, label in zip(self.grid.columns, column, strict=True)]
            for column in columns
        ]
        if self.grid.columns and self.grid.columns[-1] == MEASURE:
            words = Counter(measure.title.split(" ")[0] for measure in self._measures if " " in measure.title)
            shared = {word for word, count in words.items() if count > 1 and word.strip(".…")}
            if shared and len(words) > 1:
                titles = [[*title[:-1], *_apart(title[-1], shared)] for title in titles]
        depth = len(titles[0]) if titles else 1
        left = [[Head("")] * len(self.grid.rows) for _ in range(depth)]
        left[-1] = [Head("" if axis == MEASURE else axis) for axis in self.grid.rows]
        rows = []
        for i in range(depth):
            same = groupby(titles, key=lambda title, i=i: title[: i + 1])  # type: ignore[misc]
            spans = [(title[i], len(list(group))) for title, group in same]
            inner = i == depth - 1
            heads = (
                [Head(text) for text, span in spans for _ in range(span)] if inner else [Head(*one) for one in spans]
            )
            rows.append((*left[i], *heads))
        return tuple(rows)

    # -- what stands there ---------------------------------------------------------------------------------------------

    def _best(self, block: Place, column: Place, rows: Sequence[Place]) -> set[Place]:
        """Rows with the best mean of ours, as shown, among those that differ in the innermost axis alone.

        Cells with other data or another partition are another task: of several tasks in one axis, only the one of most
        rows has a best. Numbers of scale smoke have none. A cell with a diverged repetition is no candidate, nor is one
        of networks that give one answer to all inputs, whose clients may differ least.
        """
        axes = [axis for axis in self.grid.rows if axis != MEASURE]
        found: set[Place] = set()
        groups: dict[Place, dict[str, dict[Place, float]]] = {}
        for row in rows if self.run.scale != "smoke" else ():
            number = self._numbers.get((block, row, column))
            if number is None or not number[1].better or not axes:
                continue
            if self.run.lost(number[0].name) or number[0].name in self.run.one_answer:
                continue
            values = self.run.values(number[0].name, number[1])
            if values and all(map(math.isfinite, values)):
                apart = tuple(label for axis, label in zip(self.grid.rows, row, strict=True) if axis != axes[-1])
                tasks = groups.setdefault(apart, {})
                tasks.setdefault(self._task(number[0]), {})[row] = round(
                    mean_std(values)[0], _decimals(number[1], values)
                )
        for tasks in groups.values():
            means = max(tasks.values(), key=len)
            if len(means) > 1 and len(set(means.values())) > 1:
                _, measure = self._numbers[block, next(iter(means)), column]
                top = (max if measure.better == "high" else min)(means.values())
                found |= {row for row, mean in means.items() if mean == top}
        return found

    def _task(self, cell: Cell) -> str:
        """Return the data and the partition of a cell, as text."""
        experiment = self.run.experiment(cell)
        return f"{experiment.data!r} {experiment.partition!r}"


def _without(titles: list[TableCell], entries: list[TableCell]) -> tuple[list[TableCell], list[TableCell]]:
    """Return a row; one of which nothing was run says so once, behind its title, and keeps the paper's numbers."""
    there = [one for one in entries if one != TableCell()]
    if titles and there and all(one.mark == "missing" for one in there):
        titles[-1] = replace(titles[-1], text=f"{titles[-1].text}, {NOT_RUN}")
        entries = [replace(one, text="") for one in entries]
    return titles, entries


def _once(entry: TableCell, number: tuple[Cell, Measure] | None, said: set[str]) -> TableCell:
    """Return an entry; a cell that was not run says so once in a table, and keeps the paper's numbers."""
    if number is None or entry.mark != "missing" or not entry.text:
        return entry
    first = number[0].name not in said
    said.add(number[0].name)
    return entry if first else replace(entry, text="")


def _apart(title: str, shared: Collection[str]) -> tuple[str, str]:
    """L1, Acc(L) of "L1 Acc(L)" where others begin with L1 too."""
    first, _, rest = title.partition(" ")
    return (first, rest) if first in shared else ("", title)


def entry(run: SuiteRun, cell: Cell, measure: Measure, best: bool = False) -> TableCell:
    """A number of ours with the paper's and the difference; or in words why there is none."""
    published = run.published(cell.name, measure)
    paper = "–" if published is None or published.value is None else spread(
        published.value, published.spread, measure.digits
    )  # fmt: skip
    note = f"The paper's number: {published.remark}." if published and published.remark else ""
    below: tuple[str, ...] = (paper,) if published else ()
    values = run.values(cell.name, measure)
    if not values:
        return _absent(run, cell, measure, below, note)
    mean, digits = _moments(values)[0], _decimals(measure, values)
    text = _text(values, digits)
    outcome = run.outcomes[cell.name][0]
    if lost := run.lost(cell.name):
        note = f"{note} {lost}: mean of the others.".strip()
    elif len(values) != run.n:
        note = f"{note} n = {len(values)}.".strip()
    if cell.name in run.stand_ins:
        if not set(run.outcomes) <= set(run.stand_ins):
            note = f"{note} On {run.stand_ins[cell.name]}, which stands in for the paper's data.".strip()
        return TableCell(text, mean, run.link(outcome), "elsewhere", note, below)
    if published and published.value is not None and math.isfinite(mean) and run.scale != "smoke":
        below = (paper, signed_number(mean - published.value, digits))
    return TableCell(text, mean, run.link(outcome), "best" if best else "", note, below)


def _absent(run: SuiteRun, cell: Cell, measure: Measure, below: tuple[str, ...], note: str) -> TableCell:
    if not run.outcomes.get(cell.name) and (lost := run.lost(cell.name)):
        return TableCell("diverged", mark="bad", note=f"{cell.name}: {lost}.", below=below)
    if cell.name in run.problems:
        reason = f"{cell.name} could not be run: {run.problems[cell.name]}"
        return TableCell("failed", mark="bad", note=reason, below=below)
    if run.outcomes.get(cell.name):
        rounds, at = run.experiment(cell).training.rounds, measure.key.partition("#")[2]
        missing = f"A run has {rounds} rounds." if at.isdigit() and int(at) > rounds else ""
        return TableCell("–", mark="muted", note=note or missing or "This method has no such number.", below=below)
    for scale in sorted(run.elsewhere, key=_size, reverse=True):
        values = run.values(cell.name, measure, scale)
        if values:
            note = f"{note} Run at scale {scale} (n = {len(values)}), not at {run.scale}.".strip()
            text, outcome = _text(values, _decimals(measure, values)), run.elsewhere[scale][cell.name][0]
            return TableCell(text, _moments(values)[0], run.link(outcome), "elsewhere", note, below)
    return TableCell(NOT_RUN, mark="missing", note=note, below=below)


def _size(scale: str) -> int:
    return SCALES.index(scale) if scale in SCALES else -1


def legend(run: SuiteRun, measures: Sequence[Measure]) -> Iterator[str]:
    """Describe the numbers and their spreads."""
    suite = run.suite
    keys = {measure.key for measure in measures}
    printed = [number for (_, key), number in suite.published.items() if key in keys]
    over = f"Ours: mean ± sample standard deviation over n = {run.n} repetitions" if run.n > 1 else "Ours: n = 1"
    linked = any(run.link(outcome) for each in run.outcomes.values() for outcome in each)
    named = " where a title names no other" if any("#" in key for key in keys) else ""
    bold = "" if run.scale == "smoke" else "; the best mean of ours in bold, which is no test"
    if any(run.outcomes.values()):
        yield (
            f"{over}, {'last' if suite.at == 'final' else 'best'} round{named}{bold}."
            f"{' Numbers lead to their runs in MLflow.' if linked else ''}"
        )
    else:
        yield f"Ours: nothing was run at scale {run.scale}."
    if run.changes:
        yield f"Ours: with settings changed by --set: {run.changes_in_words}."
    if _is_rarely_scored(run, keys):
        yield (
            "Rounds to a target and highest values are those of the scored rounds. Acc(G) of clients' own models is "
            "scored in fewer rounds than that of a model which all clients share (evaluation.global_every), so that "
            "these numbers of the two are no fair comparison."
        )
    if printed:
        spreads = [number for number in printed if number.spread is not None]
        said = {number.n for number in spreads} - {None} or ({suite.repetitions} if suite.states_repetitions else set())
        theirs = f"{said.pop()} repetitions" if len(said) == 1 else "repetitions"
        kinds = {
            "repetitions": f"its ± is over its {theirs}; what ± is, it does not say",
            "clients": "its ± is over clients, and must not be compared with ours, which is over repetitions",
            "": "it does not say what its ± is over, so that it must not be compared with ours",
        }
        of_spread = f"; {kinds[suite.spread_over]}" if spreads else ""
        is_compared = run.scale != "smoke" and not set(run.outcomes) <= set(run.stand_ins)
        differs = ", and behind | ours − the paper's" * is_compared
        yield f"Beside ours: the paper's number{differs}{of_spread}."


def _is_rarely_scored(run: SuiteRun, keys: Collection[str]) -> bool:
    """True if one of the numbers is chosen among rounds on pooled data, which are fewer for clients' own models."""
    if not any(re.match(r"\w+/(?!G/)\w+/(acc|global/|synthetic_).*(@|#best)", key) for key in keys):
        return False
    settings = [run.experiment(run.suite.cell(cell)).evaluation for cell in run.outcomes]
    return any(one.full_every > one.every for one in settings)


def data(run: SuiteRun, cells: Sequence[Cell], measures: Sequence[Measure]) -> pd.DataFrame:
    """Everything a table shows, a row a number, unrounded."""
    rows = []
    for cell, measure in product(cells, measures):
        values, published = run.values(cell.name, measure), run.published(cell.name, measure)
        mean, std = _moments(values) if values else (math.nan, None)
        theirs = published.value if published else None
        compared = math.isfinite(mean) and theirs is not None and cell.name not in run.stand_ins
        compared = compared and run.scale != "smoke"
        rows.append(
            {
                **cell.labels,
                "measure": measure.key,
                "ours": mean if values else None,
                "ours_std": std,
                "n": len(values),
                "diverged": len(run.diverged.get(cell.name, ())),
                "paper": theirs,
                "paper_spread": published.spread if published else None,
                "paper_n": published.n if published else None,
                "difference": mean - theirs if compared and theirs is not None else None,
                "stand_in": run.stand_ins.get(cell.name, ""),
                "remark": run.problems.get(cell.name, "") or (published.remark if published else ""),
            }
        )
    return pd.DataFrame(rows)


def spread(value: float, std: float | None, digits: int) -> str:
    """98.70 ± 0.12"""
    if math.isinf(value):
        return NEVER
    return f"{value:.{digits}f}".replace("-", "−") + ("" if std is None else f" ± {std:.{digits}f}")


def _decimals(measure: Measure, values: Sequence[float]) -> int:
    """Decimals of a number of ours: those of the measure; with none, a mean of several runs has one, as of counts."""
    return measure.digits or int(len(values) > 1)


def _moments(values: Sequence[float]) -> tuple[float, float | None]:
    return (math.inf, None) if any(map(math.isinf, values)) else mean_std(values)


def _text(values: Sequence[float], digits: int) -> str:
    never = sum(map(math.isinf, values))
    if never and never < len(values):
        return f"{NEVER} in {never} of {len(values)}"
    return spread(*_moments(values), digits)
