"""Results of suites as files that are small enough to be committed: a row a finished run, a column a measure.

Tables and claims are made again from such a file, without the runs and their work folder. A row counts as long as the
suite still runs what the row was run with: the hash of the cell's experiment without its seed, which has the data's
content and the method's code in it. A row of an earlier version of the suite is never shown as one of this version.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_ops.csv_text import to_csv
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.files import write_named
from pfl_ops.papers.suite import SCALES, Cell, CellResults, ScaleName, Suite
from pfl_ops.papers.suite_run import SuiteRun
from pfl_ops.results import Result

if TYPE_CHECKING:
    import pandas as pd

ABOUT = ("cell", "seed", "setting", "commit", "torch")
"""Columns before the measures: `setting` is the start of the hash, `commit` the revision that computed the run."""

HASH = 12  # characters of a hash, and of a commit
COMMIT, TORCH = "pfl_ops.git_revision", "version.torch"  # tags of a run


def file_name(suite: Suite, scale: ScaleName) -> str:
    """Return the name of a suite's file without its ending: "drdm-table3-full"."""
    return f"{suite.name.replace('/', '-')}-{scale}"


def setting(suite: Suite, cell: Cell, scale: ScaleName, data_dir: str | None = None) -> str:
    """Return the start of the hash of what a cell runs, without its seed.

    Raises:
        PflOpsError: its data are not here.
    """
    return suite.experiment(cell, scale).digest(data_dir, seed=False)[:HASH]


def write(
    folder: str | Path, suite: Suite, scale: ScaleName, outcomes: CellResults, data_dir: str | None = None
) -> Path:
    """Write the results of a suite; rows of other seeds that the file has, and that are not outdated, stay.

    Args:
        folder: of the files. outcomes: finished repetitions on the suite's own data with its own settings.
        data_dir: where the data lie.
    Returns:
        the file.
    Raises:
        PflOpsError: it can't be read or written.
    """
    import pandas as pd

    path = Path(folder, f"{file_name(suite, scale)}.csv")
    before = _results(suite, scale, _read(path), data_dir).outcomes if path.exists() else {}
    columns = [*ABOUT, *(measure.key for measure in suite.measures)]
    rows = list(_rows(suite, scale, (before, outcomes), data_dir))
    return write_named(path, to_csv(pd.DataFrame(rows, columns=columns)))


def _rows(
    suite: Suite, scale: ScaleName, several: Sequence[CellResults], data_dir: str | None
) -> Iterator[dict[str, str | int | float | None]]:
    """A row a repetition, in the order of cells and seeds; of two with one seed the later."""
    for cell in suite.cells:
        by_seed = {one.seed: one for outcomes in several for one in outcomes.get(cell.name, ())}
        hashed = setting(suite, cell, scale, data_dir) if by_seed else ""
        for seed, one in sorted(by_seed.items()):
            values = ((measure.key, one.value(measure.key, suite.at, measure.unit)) for measure in suite.measures)
            yield {
                "cell": cell.name,
                "seed": seed,
                "setting": hashed,
                "commit": one.tags.get(COMMIT, "")[:HASH],
                "torch": one.tags.get(TORCH, ""),
                **{key: None if value is None else float(f"{value:.10g}") for key, value in values},
            }


def read(folder: str | Path, suites: Sequence[Suite], data_dir: str | None = None) -> list[SuiteRun]:
    """Read the files of these suites that are in a folder, in the suites' order, the largest scale first.

    Raises:
        PflOpsError: a file that can't be read; the data of one are not here, so that its rows can't be checked.
    """
    found = []
    for suite in suites:
        for scale in reversed(SCALES):
            path = Path(folder, f"{file_name(suite, scale)}.csv")
            if path.exists():
                found.append(_results(suite, scale, _read(path), data_dir))
    return found


def _results(suite: Suite, scale: ScaleName, table: "pd.DataFrame", data_dir: str | None) -> SuiteRun:
    keys = [measure.key for measure in suite.measures if measure.key in table]
    outcomes: dict[str, list[Result]] = {}
    outdated = 0
    for cell, rows in table.groupby("cell", sort=False):
        now = _setting_now(suite, str(cell), scale, data_dir)
        for row in rows.to_dict("records"):
            if row["setting"] != now:
                outdated += 1
                continue
            tags = {COMMIT: str(row["commit"]), TORCH: str(row["torch"])}
            values = {key: float(row[key]) for key in keys}
            run = Result.of_numbers(int(row["seed"]), {}, tags=tags, measures=values)
            outcomes.setdefault(str(cell), []).append(run)
    return SuiteRun(suite, scale, outcomes, outdated=outdated)


def _setting_now(suite: Suite, name: str, scale: ScaleName, data_dir: str | None) -> str | None:
    """The hash as the suite has it now; None: it has no such cell any more."""
    cell = next((cell for cell in suite.cells if cell.name == name), None)
    return None if cell is None else setting(suite, cell, scale, data_dir)


def _read(path: Path) -> "pd.DataFrame":
    import pandas as pd

    texts = {name: str for name in ("cell", "setting", "commit", "torch")}
    try:
        table = pd.read_csv(path, dtype={**texts, "seed": int}, keep_default_na=True)
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        raise PflOpsError(f"can't read the results {path}: {in_a_line(error)}") from error
    missing = [name for name in ABOUT if name not in table]
    if missing:
        raise PflOpsError(f"can't read the results {path}: it has no column {missing[0]}")
    return table.fillna({name: "" for name in texts})
