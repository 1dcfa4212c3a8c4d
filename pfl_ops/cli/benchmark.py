"""`pfl-ops tune` with several methods: the same budget for each, and one leaderboard."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_ops import tuning
from pfl_ops.cli.options import experiment_of
from pfl_ops.cli.output import interruptible, out, say
from pfl_ops.errors import PflOpsError, count, in_a_line, together

if TYPE_CHECKING:
    import pandas as pd

    from pfl_ops.config.experiment import Experiment
    from pfl_ops.display.tables import TableRows
    from pfl_ops.tuning.commands.benchmark import Benchmark

REPORTS = Path("reports")


def experiments_of(
    methods: Sequence[str], flags: Mapping[str, str | None], *, sets: Iterable[str], **given: Any
) -> "list[Experiment]":
    """The experiment of each method, from one command line; one message has the mistakes of all.

    Raises:
        PflOpsError: a method does not exist, or can't be run so; or a setting that only some of the methods have.
    """
    sets = list(sets)
    found, wrong = [], {}
    for method in methods:
        try:
            found.append(experiment_of(method, flags, sets=sets, **given))
        except PflOpsError as error:
            wrong[method] = str(error)
    if wrong:
        raise _of_some(methods, sets, wrong) or together(wrong)
    return found


def _of_some(methods: Sequence[str], sets: Iterable[str], wrong: Mapping[str, str]) -> PflOpsError | None:
    """The error for a hyper-parameter that some of the methods have and others don't."""
    from pfl_ops.algorithms import ALGORITHMS
    from pfl_ops.config.precedence import assignments

    if not set(methods) <= set(ALGORITHMS.names()):
        return None
    for path in assignments(sets):
        section, _, field = path.partition(".")
        having = [m for m in methods if field.partition(".")[0] in ALGORITHMS.get(m).model_fields]
        if section == "algorithm" and having and set(wrong) == set(methods) - set(having):
            return PflOpsError(
                f"--set {path}: only {', '.join(having)} {'has' if len(having) == 1 else 'have'} it, not "
                f"{', '.join(wrong)}; leave it out, or tune {'that one' if len(having) == 1 else 'those'} alone"
            )
    return None


def run_benchmark(experiments: "Sequence[Experiment] | None", finals: int, given: Mapping[str, Any]) -> None:
    """Run a benchmark, and show its leaderboard.

    Args:
        experiments: one a method; none: as recorded. finals: test runs a method. given: all other arguments of
            `benchmark`.
    """
    from pfl_ops.tuning.commands.benchmark import benchmark

    written: list[Path] = []
    wrong: list[Exception] = []

    def report(made: "Benchmark") -> Path | None:
        try:
            written.append(_write(made))
        except Exception as error:  # the benchmark is done; a fault of its page is reported below its table
            wrong.append(error)
            return None
        return written[-1].parent

    with interruptible(), tuning.StudyProgress() as show:
        made = benchmark(experiments, final_repetitions=finals, on_event=show, report=report, **given)
    _show(made, given["tracking_uri"])
    for page in written:
        say(out(), f"report: {page}")
    for error in wrong:
        raise PflOpsError(f"no report of {made.name}: {in_a_line(error)}") from error


def _write(made: "Benchmark") -> Path:
    """The report's page, in ./reports/<name>."""
    from pfl_ops.cli.study_page import generated
    from pfl_ops.reports.leaderboards.leaderboard import leaderboard
    from pfl_ops.reports.pages.write import write

    first = next(iter(made.studies.values())).experiment
    title = f"Leaderboard: {first.data.label}, {first.partition.kind}"
    name = "importance_fanova"
    drawable = {
        method: study.pictures
        for method, study in made.studies.items()
        if study.pictures is not None and name in study.pictures.drawable
    }
    importance = {method: partial(pictures.draw, name) for method, pictures in drawable.items()}
    document = leaderboard(
        made.name,
        made.table,
        made.traces,
        made.tests,
        made.notes,
        _shared(made),
        title,
        generated(),
        made.costs,
        importance,
    )
    return write(document, REPORTS / made.name)


def _shared(made: "Benchmark") -> dict[str, str]:
    """Return the settings that neither vary in a study nor differ between methods: term and text."""
    from pfl_ops.display.setting_cards import shared

    studies = list(made.studies.values())
    first, flats = studies[0].experiment, [study.experiment.flat for study in studies]
    apart = {path for path, value in first.flat.items() if any(flat.get(path) != value for flat in flats)}
    told = shared(first, apart.union(*(map(str, study.table) for study in studies)))
    del told["method"]
    seeds = ", ".join(str(seed) for seed in sorted(set(made.tests["seed"])))
    return {**told, "seeds": seeds or f"{first.seed}, not tested"}


def _show(made: "Benchmark", tracking_uri: str | None) -> None:
    """The leaderboard, what was chosen, and where to look closer."""
    import pandas as pd

    from pfl_ops.cli.run import look_closer
    from pfl_ops.cli.terminal_tables import print_rows
    from pfl_ops.display import tables

    console = out()
    print_rows(console, tables.leaderboard(made.table, made.name))
    console.print()
    print_rows(console, cost_rows(made.table))
    if len(made.costs):
        console.print()
        print_rows(console, tables.equal_cost(made.costs, made.table["metric"].iloc[0]))
    say(console, "\nchosen")
    width = max(map(len, made.table["method"]))
    for row in made.table.to_dict("records"):
        trial = "" if pd.isna(row["trial"]) else f"trial {int(row['trial']):03d}"
        error = f"{row['status']}: {row['error']}" if row["error"] else ""
        said = "  ".join(part for part in (trial, row["settings"], error) if part)
        say(console, f"  {row['method']:{width}}  {said}")
    console.print()
    say(console, *made.notes)
    say(console, "\n" + look_closer(tracking_uri, made.page, "experiment", made.name))


def cost_rows(table: "pd.DataFrame") -> "TableRows":
    """Return a row a method of a leaderboard: what it took, in its search and for one test run."""
    from pfl_ops.display.tables import TableRows
    from pfl_ops.federation.loop.estimate import duration
    from pfl_ops.units import mebibytes

    heads = (
        "method",
        "trials",
        "samples",
        "settings varied",
        "search",
        "a test run",
        "a test run sends",
        "test data opened",
    )
    rows = [
        (
            row["method"],
            f"{row['trials']}{_lost(row)}",
            f"{row['search_samples']:,}",
            str(row["tuned"]),
            duration(row["search_seconds"]),
            duration(row["test_seconds"]) if math.isfinite(row["test_seconds"]) else "–",
            mebibytes(row["sent_bytes"]),
            count(row["openings"], "time"),
        )
        for row in table.to_dict("records")
    ]
    return TableRows("cost", heads, tuple(rows))


def _lost(row: Mapping[Any, Any]) -> str:
    """Trials that are complete in no sense, in brackets."""
    lost = [f"{row[state]} {state}" for state in ("diverged", "failed") if row[state]]
    return f" ({', '.join(lost)})" if lost else ""
