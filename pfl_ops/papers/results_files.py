"""Results of suites as files that are small enough to be committed: a row a finished run, a column a measure.

Tables and claims are made again from such a file, without the runs and their work folder. A row counts as long as the
suite still runs what the row was run with: the hash of the cell's experiment without its seed, which has the data's
content and the method's code in it. A row of an earlier version of the suite is never shown as one of this version.
Runs with settings that the user changed (`reproduce --set`) are in a file of their own.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_ops.config.precedence import assignments
from pfl_ops.csv_text import to_csv
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.files import write_named
from pfl_ops.papers import overrides
from pfl_ops.papers.suite import SCALES, Cell, CellResults, Changes, ScaleName, Suite
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.results import Result

if TYPE_CHECKING:
    import pandas as pd

ABOUT = ("cell", "seed", "setting", "commit", "torch")
"""Columns before the measures: `setting` is the start of the hash, `commit` the revision that computed the run."""
SET = "set"
"""The first column of a file of changed settings: the changes as `--set` takes them, quoted as in a shell."""

HASH = 12  # characters of a hash, and of a commit
COMMIT, TORCH = "pfl_ops.git_revision", "version.torch"  # tags of a run


def file_name(suite: Suite, scale: ScaleName, changed: bool = False) -> str:
    """Return the name of a suite's file without its ending: "drdm-table3-full"; that of changed settings:
    "drdm-table3-full-changed"."""
    return f"{suite.name.replace('/', '-')}-{scale}{'-changed' * changed}"


def setting(
    suite: Suite, cell: Cell, scale: ScaleName, data_dir: str | None = None, changes: Changes | None = None
) -> str:
    """Return the start of the hash of what a cell runs, without its seed.

    Raises:
        PflOpsError: its data are not here; a value of the changes is not allowed.
    """
    experiment = overrides.changed(suite.experiment(cell, scale), changes or {})
    return experiment.digest(data_dir, seed=False)[:HASH]


def write(
    folder: str | Path,
    suite: Suite,
    scale: ScaleName,
    outcomes: CellResults,
    data_dir: str | None = None,
    changes: Changes | None = None,
) -> Path:
    """Write the results of a suite; rows of other seeds and changes that the file has, and that are not outdated, stay.

    Args:
        folder: of the files. outcomes: finished repetitions on the suite's own data.
        data_dir: where the data lie. changes: settings that the user changed in the cells that have them.
    Returns:
        the file.
    Raises:
        PflOpsError: it can't be read or written.
    """
    import pandas as pd

    path = Path(folder, f"{file_name(suite, scale, changed=bool(changes))}.csv")
    before = list(_results(suite, scale, _read(path), data_dir)) if path.exists() else []
    several = {one.changes_in_words: (one.changes, [one.outcomes]) for one in before}
    added = SuiteRun(suite, scale, outcomes, changes=changes or {})
    several.setdefault(added.changes_in_words, (added.changes, []))[1].append(outcomes)
    columns = [*([SET] if changes else []), *ABOUT, *(measure.key for measure in suite.measures)]
    rows = [row for _, (made, each) in sorted(several.items()) for row in _rows(suite, scale, each, made, data_dir)]
    return write_named(path, to_csv(pd.DataFrame(rows, columns=columns)))


def _rows(
    suite: Suite, scale: ScaleName, several: Sequence[CellResults], changes: Changes, data_dir: str | None
) -> Iterator[dict[str, str | int | float | None]]:
    """A row a repetition, in the order of cells and seeds; of two with one seed the later."""
    for cell in suite.cells:
        by_seed = {one.seed: one for outcomes in several for one in outcomes.get(cell.name, ())}
        hashed = setting(suite, cell, scale, data_dir, changes) if by_seed else ""
        for seed, one in sorted(by_seed.items()):
            values = ((measure.key, one.value(measure.key, suite.at, measure.unit)) for measure in suite.measures)
            yield {
                SET: shlex.join(overrides.as_flags(changes)),
                "cell": cell.name,
                "seed": seed,
                "setting": hashed,
                "commit": one.tags.get(COMMIT, "")[:HASH],
                "torch": one.tags.get(TORCH, ""),
                **{key: None if value is None else float(f"{value:.10g}") for key, value in values},
            }


def read(folder: str | Path, suites: Sequence[Suite], data_dir: str | None = None) -> list[SuiteRun]:
    """Read the files of these suites that are in a folder, in the suites' order, the largest scale first, each as the
    suite is before those with changed settings.

    Raises:
        PflOpsError: a file that can't be read; the data of one are not here, so that its rows can't be checked.
    """
    found: list[SuiteRun] = []
    for suite in suites:
        for scale in reversed(SCALES):
            for changed in (False, True):
                path = Path(folder, f"{file_name(suite, scale, changed)}.csv")
                if path.exists():
                    found += _results(suite, scale, _read(path), data_dir)
    return found


def known(
    folder: str | Path, suites: Sequence[Suite], scale: ScaleName, changes: Changes, data_dir: str | None = None
) -> dict[str, CellResults]:
    """Return the repetitions in a folder's files that a call with these changes need not run, by suite and cell.

    Those with the same changes, and those without any of the cells that the changes leave as they are.

    Raises:
        PflOpsError: see `read`.
    """
    found: dict[str, CellResults] = {}
    files = [one for one in read(folder, suites, data_dir) if one.scale == scale]
    for suite in suites:
        call = SuiteRun(suite, scale, {}, changes=changes)
        by_seed: dict[str, dict[int, Result]] = {}
        for one in (one for one in files if one.suite.name == suite.name):
            same = one.changes_in_words == call.changes_in_words
            for cell, rows in one.outcomes.items():
                if same or not (one.changes or cell in call.changed):
                    by_seed.setdefault(cell, {}).update({row.seed: row for row in rows})
        found[suite.name] = {cell: list(each.values()) for cell, each in by_seed.items()}
    return found


def _results(suite: Suite, scale: ScaleName, table: "pd.DataFrame", data_dir: str | None) -> Iterator[SuiteRun]:
    """The runs of a file: of changed settings those with each change."""
    if SET not in table:
        yield _with_changes(suite, scale, table, {}, data_dir)
        return
    for text, rows in table.groupby(SET, sort=False):
        yield _with_changes(suite, scale, rows, _changes(str(text)), data_dir)


def _with_changes(
    suite: Suite, scale: ScaleName, table: "pd.DataFrame", changes: Changes, data_dir: str | None
) -> SuiteRun:
    keys = [measure.key for measure in suite.measures if measure.key in table]
    outcomes: dict[str, list[Result]] = {}
    outdated = 0
    for cell, rows in table.groupby("cell", sort=False):
        now = _setting_now(suite, str(cell), scale, changes, data_dir)
        for row in rows.to_dict("records"):
            if row["setting"] != now:
                outdated += 1
                continue
            tags = {COMMIT: str(row["commit"]), TORCH: str(row["torch"])}
            values = {key: float(row[key]) for key in keys}
            run = Result.of_numbers(int(row["seed"]), {}, tags=tags, measures=values)
            outcomes.setdefault(str(cell), []).append(run)
    return SuiteRun(suite, scale, outcomes, outdated=outdated, changes=changes)


def _setting_now(suite: Suite, name: str, scale: ScaleName, changes: Changes, data_dir: str | None) -> str | None:
    """The hash as the suite has it now; None: it has no such cell any more, or its changes can't be made now."""
    cell = next((cell for cell in suite.cells if cell.name == name), None)
    if cell is None:
        return None
    experiment = suite.experiment(cell, scale)
    try:
        overrides.changed(experiment, changes)
    except PflOpsError:
        return None
    return setting(suite, cell, scale, data_dir, changes)


def _read(path: Path) -> "pd.DataFrame":
    import pandas as pd

    texts = {name: str for name in (SET, "cell", "setting", "commit", "torch")}
    try:
        table = pd.read_csv(path, dtype={**texts, "seed": int}, keep_default_na=True)
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        raise PflOpsError(f"can't read the results {path}: {in_a_line(error)}") from error
    missing = [name for name in ABOUT if name not in table]
    if missing:
        raise PflOpsError(f"can't read the results {path}: it has no column {missing[0]}")
    table = table.fillna({name: "" for name in texts})
    try:
        for text in table[SET].unique() if SET in table else ():
            _changes(text)
    except (PflOpsError, ValueError) as error:
        raise PflOpsError(f"can't read the results {path}: column {SET}: {in_a_line(error)}") from error
    return table


def _changes(text: str) -> Changes:
    """{path: value} of changes in a file."""
    return assignments(shlex.split(text))
