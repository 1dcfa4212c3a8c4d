"""Results of suites as files that are small enough to be committed: a row a finished run, a column a measure.

Tables and claims are made again from such a file, without the runs and their work folder. A row counts as long as the
suite still runs what the row was run with: the hash of the cell's experiment without its seed, which has the data's
content and the method's code in it. A row of an earlier version of the suite is never shown as one of this version.
A repetition whose training diverged has a row without numbers. Accuracies on pooled data are in the file of a suite
that does not show them, too: they tell networks that give one answer to all inputs (`SuiteRun.one_answer`).
Runs with settings that the user changed (`reproduce --set`) are in a file of their own. In the files of a user's own
suite a row also says what its numbers are, so that one in other units, or of the best round, is outdated too.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_ops import tag_names
from pfl_ops.config.experiment import Experiment
from pfl_ops.config.identity import fingerprint, identity
from pfl_ops.csv_text import to_csv
from pfl_ops.data.datasets import here, unread
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.files import alone_in, write_named
from pfl_ops.metric_keys import TARGET_MARK, summands
from pfl_ops.metrics import ROUNDING, acc_sum
from pfl_ops.papers import overrides
from pfl_ops.papers.measure_keys import bounds
from pfl_ops.papers.suite import SCALES, Cell, CellResults, Changes, Divergences, KeptRuns, ScaleName, Suite
from pfl_ops.papers.suite_run import POOLED, SuiteRun
from pfl_ops.results import Result

if TYPE_CHECKING:
    import pandas as pd

ABOUT = ("cell", "seed", "setting", "commit", "torch")
"""Columns before the measures: `setting` is the start of the hash, `commit` the revision that computed the run."""
DIVERGED = "diverged"
"""A column behind these, if some repetition diverged: "diverged at round 7, lr 0.4", empty in the other rows."""
SET = "set"
"""The first column of a file of changed settings: {path: value} as JSON."""
NUMBERS = "numbers"
"""A column behind `ABOUT` in files of a user's own suite: units other than 100, round and stages, as JSON."""
UNIT = 100.0
NONE = "none"
"""The cell of a measure that the run does not have. An empty one is not known: the suite has the measure since then."""

SUM_ROUNDING = 0.02
"""Difference that a sum of accuracies may have, as a share: a table program may have saved each with two decimals."""
HASH = 12  # characters of a hash, and of a commit
COMMIT, TORCH = tag_names.GIT_REVISION, "version.torch"  # tags of a run


def file_name(suite: Suite, scale: ScaleName, changed: bool = False) -> str:
    """Return the name of a suite's file without its ending, "drdm-table3-full"; with changed settings
    "drdm-table3-full-changed"."""
    return f"{suite.name.replace('/', '-')}-{scale}{'-changed' * changed}"


def setting(
    suite: Suite, cell: Cell, scale: ScaleName, data_dir: str | None = None, changes: Changes | None = None
) -> str:
    """Return the start of the hash of what a cell runs, without its seed; of data that are not here, as published.

    Raises:
        PflOpsError: its data are not here, and their content is not known; a value of the changes is not allowed.
    """
    return _setting(overrides.changed(suite.experiment(cell, scale), changes or {}), data_dir)


def _setting(experiment: Experiment, data_dir: str | None) -> str:
    data = None if here(experiment.data.name, data_dir=data_dir) else unread(experiment.data)
    return fingerprint(identity(experiment, data_dir, data=data), without=("seed",))[:HASH]


def write(
    folder: str | Path,
    suite: Suite,
    scale: ScaleName,
    outcomes: CellResults,
    data_dir: str | None = None,
    changes: Changes | None = None,
    diverged: Divergences | None = None,
) -> Path:
    """Write the results of a suite; rows of other seeds and changes that the file has stay, outdated ones do not.

    Another process that writes results to this folder is waited for: its rows stay too.

    Args:
        folder: of the files. outcomes: finished repetitions on the suite's own data.
        data_dir: where the data lie. changes: settings that the user changed in the cells that have them.
        diverged: repetitions whose training diverged.
    Returns:
        the file.
    Raises:
        PflOpsError: it can't be read or written.
    """
    run = SuiteRun(suite, scale, outcomes, diverged=diverged or {}, changes=changes or {})
    path = Path(folder, f"{file_name(suite, scale, changed=bool(changes))}.csv")
    with alone_in(folder):
        return write_named(path, to_csv(_with(path, run, data_dir)))


def _with(path: Path, run: SuiteRun, data_dir: str | None) -> "pd.DataFrame":
    """The rows of a file with those of a run, see `write`."""
    import pandas as pd

    rows = _read(path) if path.exists() else []
    mine = _as_json(run.changes)
    before = _suite_run(run.suite, run.scale, [row for row in rows if row.changes == mine], run.changes, data_dir)
    made = list(_rows(before, run, data_dir))
    others = [row.cells for row in rows if row.changes != mine]
    lost, *pooled = ([key] if any(row.get(key) for row in (*others, *made)) else [] for key in (DIVERGED, *POOLED))
    keys = (measure.key for measure in run.suite.measures)
    said = [NUMBERS] if any(row.get(NUMBERS) for row in (*others, *made)) else []
    columns = dict.fromkeys([*([SET] if run.changes else []), *ABOUT, *said, *lost, *keys, *chain(*pooled)])
    table = pd.DataFrame([*others, *made], columns=[*columns])
    return table.sort_values(SET, kind="stable") if run.changes else table


def _as_json(changes: Changes) -> str:
    """The changes in one form, whatever their order; "": none."""
    return json.dumps(dict(changes), sort_keys=True, ensure_ascii=False) if changes else ""


def _rows(before: SuiteRun, run: SuiteRun, data_dir: str | None) -> Iterator[dict[str, str | int | float | None]]:
    """A row a repetition, in the order of cells and seeds; of two with one seed that of `run`."""
    suite = run.suite
    for cell in suite.cells:
        by_seed: dict[int, Result | str] = {}
        for several in (before, run):
            by_seed |= {one.seed: one for one in several.outcomes.get(cell.name, ())}
            by_seed |= several.diverged.get(cell.name, {})
        hashed = setting(suite, cell, run.scale, data_dir, run.changes) if by_seed else ""
        for seed, one in sorted(by_seed.items()):
            row: dict[str, str | int | float | None]
            row = {SET: _as_json(run.changes), "cell": cell.name, "seed": seed, "setting": hashed}
            row |= {NUMBERS: json.dumps(_numbers(suite, cell), sort_keys=True)} if suite.file else {}
            if isinstance(one, str):
                yield {**row, "commit": "", "torch": "", DIVERGED: one}
                continue
            yield {
                **row,
                "commit": one.tags.get(COMMIT, "")[:HASH],
                "torch": one.tags.get(TORCH, ""),
                **{key: None if (found := _number(one, key, 1.0, suite)) == NONE else found for key in POOLED},
                **{measure.key: _number(one, measure.key, measure.unit, suite) for measure in suite.measures},
            }


def _units(suite: Suite) -> dict[str, float]:
    """Return the unit of each number of a row, by its key."""
    return {**dict.fromkeys(POOLED, 1.0), **{measure.key: measure.unit for measure in suite.measures}}


def _numbers(suite: Suite, cell: Cell) -> dict[str, Any]:
    """Return unit, round and stages of the numbers of a cell's rows, where they are other than those of most suites."""
    others = {key: unit for key, unit in _units(suite).items() if unit != UNIT}
    found = {"at": suite.at if suite.at != "final" else "", "stages": suite.stages(cell), "units": others}
    return {name: value for name, value in found.items() if value}


def _as_now(row: "_Row", now: Mapping[str, Any]) -> bool:
    """True if the numbers of a row are what they are in the suite now.

    A row of a file of an earlier version, or of a suite of the package, says nothing.
    """
    if not row.cells.get(NUMBERS):
        return True
    then, here = json.loads(row.cells[NUMBERS]), {"units": {}, **now}
    units = then.pop("units", {})
    return (
        then == {name: now[name] for name in now if name != "units"}
        and isinstance(units, dict)
        and all(units.get(key, UNIT) == here["units"].get(key, UNIT) for key in row.measures)
    )


def _number(run: Result, key: str, unit: float, suite: Suite) -> float | str | None:
    """A measure of a run, as the file has it."""
    value = run.value(key, suite.at, unit)
    if value is None:
        return None if run.measures is not None and key not in run.measures else NONE
    return float(f"{value:.10g}")


def read(folder: str | Path, suites: Sequence[Suite], data_dir: str | None = None) -> list[SuiteRun]:
    """Read the files of these suites that are in a folder, in the suites' order, the largest scale first, each as the
    suite is before those with changed settings.

    Raises:
        PflOpsError: a file that can't be read; the data of a suite are not here, so that its rows can't be checked.
    """
    found: list[SuiteRun] = []
    for suite in suites:
        for scale in reversed(SCALES):
            for changed in (False, True):
                path = Path(folder, f"{file_name(suite, scale, changed)}.csv")
                rows = _read(path) if path.exists() else []
                for changes in dict.fromkeys(row.changes for row in rows):
                    of = [row for row in rows if row.changes == changes]
                    found.append(_suite_run(suite, scale, of, json.loads(changes or "{}"), data_dir))
    return found


def known(
    folder: str | Path, suites: Sequence[Suite], scale: ScaleName, changes: Changes, data_dir: str | None = None
) -> dict[str, KeptRuns]:
    """Return the repetitions in a folder's files that a call with these changes does not run, by suite.

    Those with the same changes, and those without any of the cells that the changes leave as they are. One that
    diverged is not run again: where training is chaotic, rounding decides, and it would be run until it finishes.

    Raises:
        PflOpsError: see `read`.
    """
    found: dict[str, KeptRuns] = {}
    files = [one for one in read(folder, suites, data_dir) if one.scale == scale]
    for suite in suites:
        call = SuiteRun(suite, scale, {}, changes=changes)
        by_seed: dict[str, dict[int, Result]] = {}
        diverged: dict[str, dict[int, str]] = {}
        for one in (one for one in files if one.suite.name == suite.name):
            same = _as_json(one.changes) == _as_json(changes)
            for cell in {**one.outcomes, **one.diverged}:
                if same or not (one.changes or cell in call.changed):
                    by_seed.setdefault(cell, {}).update({row.seed: row for row in one.outcomes.get(cell, ())})
                    diverged.setdefault(cell, {}).update(one.diverged.get(cell, {}))
        found[suite.name] = KeptRuns({cell: list(each.values()) for cell, each in by_seed.items()}, diverged)
    return found


def outdated(
    folder: str | Path, suites: Sequence[Suite], scale: ScaleName, changes: Changes, data_dir: str | None = None
) -> dict[str, int]:
    """Return the number of outdated rows that a call with these changes removes from a folder's files, by file.

    Raises:
        PflOpsError: see `read`.
    """
    files = [one for one in read(folder, suites, data_dir) if one.scale == scale and one.outdated]
    return {
        f"{file_name(one.suite, scale, bool(one.changes))}.csv": one.outdated
        for one in files
        if _as_json(one.changes) == _as_json(changes)
    }


def _suite_run(
    suite: Suite, scale: ScaleName, rows: "Sequence[_Row]", changes: Changes, data_dir: str | None
) -> SuiteRun:
    """The rows of one file with the same changes, without those that the suite does not run so any more."""
    units = _units(suite)
    named = dict.fromkeys(row.cell for row in rows)
    now = {name: _setting_now(suite, name, scale, changes, data_dir) for name in named}
    numbers = {cell.name: _numbers(suite, cell) for cell in suite.cells if cell.name in named}
    outcomes: dict[str, list[Result]] = {}
    diverged: dict[str, dict[int, str]] = {}
    outdated = 0
    for row in rows:
        same = row.cells["setting"] == now[row.cell] and _as_now(row, numbers[row.cell])
        if not same:
            outdated += 1
            continue
        if how := row.cells.get(DIVERGED):
            diverged.setdefault(row.cell, {})[row.seed] = how
            continue
        tags = {COMMIT: row.cells["commit"], TORCH: row.cells["torch"]}
        measures = {key: value for key, value in row.measures.items() if key in units}
        _check_ranges(row, measures, units)
        _check_sums(row, measures, units)
        outcomes.setdefault(row.cell, []).append(Result.of_numbers(row.seed, {}, tags=tags, measures=measures))
    return SuiteRun(suite, scale, outcomes, diverged=diverged, outdated=outdated, changes=changes)


def _setting_now(suite: Suite, name: str, scale: ScaleName, changes: Changes, data_dir: str | None) -> str | None:
    """The hash as the suite has it now; None: it has no such cell any more, or its changes can't be made here."""
    cell = next((cell for cell in suite.cells if cell.name == name), None)
    if cell is None:
        return None
    try:
        experiment = overrides.changed(suite.experiment(cell, scale), changes)
    except PflOpsError:
        return None
    if changes and not here(experiment.data.name, data_dir=data_dir) and unread(experiment.data) is None:
        return None
    return _setting(experiment, data_dir)


@dataclass(frozen=True)
class _Row:
    """A row of a file.

    Attributes:
        cells: column -> text. seed: of the run. measures: those that are known; NaN: the run has no such number.
        place: its file and line, for messages.
    """

    cells: Mapping[str, str]
    seed: int
    measures: Mapping[str, float]
    place: str = ""

    @property
    def cell(self) -> str:
        return self.cells["cell"]

    @property
    def changes(self) -> str:
        return self.cells.get(SET, "")


def _read(path: Path) -> list[_Row]:
    """Return the rows of a file; a run that is there twice would count twice in a mean."""
    line = ""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Excel writes a mark in front
        reader = csv.DictReader(io.StringIO(text))
        columns = reader.fieldnames or ()
        missing = [name for name in ABOUT if name not in columns]
        if missing:
            raise ValueError(f"it has no column {missing[0]}")
        twice = [name for name in columns if columns.count(name) > 1]
        if twice:
            raise ValueError(f"it has column {twice[0]} twice")
        rows: dict[tuple[str, str, int], _Row] = {}
        for cells in reader:
            line = f"line {reader.line_num}: "
            row = replace(_row(cells), place=f"{path}: {line}")
            if (row.changes, row.cell, row.seed) in rows:
                raise ValueError(f"{row.cell} has seed {row.seed} twice; delete one of the two rows")
            rows[row.changes, row.cell, row.seed] = row
        if rows and not text.endswith(("\n", "\r")):
            raise ValueError("the file ends without a line break, so its last number may be cut off; add one if not")
        return list(rows.values())
    except (OSError, ValueError, csv.Error) as error:
        raise PflOpsError(f"can't read the results {path}: {line}{in_a_line(error)}") from error


def _measure(key: str, text: str) -> float:
    """The number of a cell; NaN: the run has none."""
    if text == NONE:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) and not (value == math.inf and TARGET_MARK in key):
        raise ValueError(f"column {key}: {text} is no finite number")
    return value


def _check_ranges(row: _Row, measures: Mapping[str, float], units: Mapping[str, float]) -> None:
    """Refuse a number that no run can have, such as an accuracy above 100 %: the file was edited.

    Args:
        row: of a file. measures: its numbers. units: of these.
    Raises:
        PflOpsError: with the file, the line and the column.
    """
    for key, value in measures.items():
        low, high = (bound * units[key] for bound in bounds(key))
        if value < low - ROUNDING or value > high * (1 + ROUNDING):
            range_ = f"{low:g} or more" if math.isinf(high) else f"{low:g} to {high:g}"
            raise PflOpsError(
                f"can't read the results {row.place}column {key}: {row.cells[key]} is no number of a run, which is "
                f"{range_}"
            )


def _check_sums(row: _Row, measures: Mapping[str, float], units: Mapping[str, float]) -> None:
    """Refuse a sum Acc = Acc(L) + Acc(G) that is not the sum of the two in its row: one of them has another unit, say.

    Args:
        row: of a file. measures: its numbers. units: of these.
    Raises:
        PflOpsError: with the file, the line and the columns.
    """
    for key in measures:
        keys = (key, *summands(key))
        found = [measures.get(one, math.nan) / units.get(one, UNIT) for one in keys]
        if len(keys) == 3 and abs(found[0] - acc_sum(*found[1:])) > SUM_ROUNDING:  # not if one is NaN
            acc, local, pooled = (row.cells[one] for one in keys)
            raise PflOpsError(
                f"can't read the results {row.place}column {key}: {acc} is not {local} + {pooled}, the sum of columns "
                f"{keys[1]} and {keys[2]}{_in_units(keys, units)}"
            )


def _in_units(keys: Sequence[str], units: Mapping[str, float]) -> str:
    """Return ", where 100 % is 1, 1 and 100", or ", where 100 % is 100" of one unit."""
    each = [f"{units[key]:g}" for key in keys]
    return f", where 100 % is {each[0] if len({*each}) == 1 else f'{each[0]}, {each[1]} and {each[2]}'}"


def _row(cells: Mapping[str, str]) -> _Row:
    """Check the cells of a row.

    Raises:
        ValueError: one is missing or no number, or the changes are no JSON object.
    """
    if None in cells or None in cells.values():
        raise ValueError("another number of cells than the header has")
    if not re.fullmatch(r"\d+", cells["seed"]):
        raise ValueError(f"column seed: {cells['seed']} is no whole number from 0 on")
    columns = [key for key, text in cells.items() if key not in (SET, *ABOUT, NUMBERS, DIVERGED) and text]
    row = _Row(cells, int(cells["seed"]), {key: _measure(key, cells[key]) for key in columns})
    for column in (SET, NUMBERS):
        text = cells.get(column)
        if text and not isinstance(json.loads(text), dict):
            raise ValueError(f"column {column}: {text} is no JSON object")
    return row
