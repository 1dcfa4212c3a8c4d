"""`pfl-ops compare`: any tracked runs side by side."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pfl_ops.cli.checks import check_finite, check_output, check_work_folder
from pfl_ops.cli.options import TrackingUri, option
from pfl_ops.cli.output import err, out, say
from pfl_ops.errors import LONGEST_PATH, PflOpsError, echo


def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|STUDY|EXPERIMENT]...",
            help="By name, with * for any, or by the beginning of a run's id; none: all but smoke cells.",
        ),
    ] = None,
    *,
    where: Annotated[
        str | None, option("Of these, those that MLflow's search finds by it.", metavar="FILTER", flag="--filter")
    ] = None,
    tag: Annotated[list[str], option("Of these, those with this tag; repeatable.", metavar="KEY=VALUE")] = [],  # noqa: B006  (Typer copies it)
    trials: Annotated[bool, option("The trials of studies too, not only their tests.", flag="--trials")] = False,
    metric: Annotated[
        str | None, option("What decides: acc, local/worst, L2/local/mean, test/G/acc ...", "acc", "KEY")
    ] = None,
    target: Annotated[
        float | None, option("Count rounds to this --metric, or else Acc(L): 0.9 is 90 %.", metavar="FLOAT")
    ] = None,
    at: Annotated[
        Literal["final", "best"], option("Values of the last round, or of each run's best.", "final", "final|best")
    ] = "final",
    test: Annotated[
        Literal["anytime", "t"],
        option("Of differences; t: paired t test, if n was fixed before the runs.", "anytime", "anytime|t"),
    ] = "anytime",
    notes: Annotated[bool, option("Print notes in full: which settings differ.", flag="--notes")] = False,
    html: Annotated[Path | None, option("Write a page with curves.", metavar="FILE.html")] = None,
    csv: Annotated[Path | None, option("Write a row a run.", metavar="FILE.csv")] = None,
    latex: Annotated[Path | None, option("Write the table.", metavar="FILE.tex")] = None,
    tracking_uri: TrackingUri = None,
) -> None:
    """Compare tracked runs, trials and studies: which is best, by how much, and how sure that is.

    Repetitions of one setting are one line: mean ± standard deviation. Settings on one data set, partition and network
    are a group. A study means the test runs of its choice. Smoke cells and unfinished runs are compared if named.
    """
    tags = _tags(tag)
    check_finite("--target", target)
    written: dict[Path, str] = {}
    for flag, file in (("--html", html), ("--csv", csv), ("--latex", latex)):
        check_output(flag, file)
        if file is not None and (other := written.setdefault(file.absolute(), flag)) != flag:
            raise PflOpsError(f"{other} and {flag} name the same file, {echo(file, LONGEST_PATH)}")
    check_work_folder(tracking_uri, "MLFLOW_TRACKING_URI")

    from pfl_ops.cli.compare_tables import show
    from pfl_ops.reports.comparison.compare import compare as compared

    comparison = compared(
        *(names or ()),
        where=where,
        tags=tags,
        trials=trials,
        metric=metric,
        target=target,
        at=at,
        test=test,
        with_clients=html is not None,
        with_curves=html is not None,
        tracking_uri=tracking_uri,
    )
    console = out()
    show(comparison, console, err(), notes)
    for name, file, write in (
        ("page", html, comparison.to_html),
        ("csv", csv, comparison.to_csv),
        ("latex", latex, comparison.to_latex),
    ):
        if file:
            say(console, f"{name:6}{write(file)}")


def _tags(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise PflOpsError(f"--tag needs key=value, got '{echo(text)}'")
        if key in found:
            raise PflOpsError(f"--tag {echo(key)} is given twice; a run has one value of it")
        found[key] = value
    return found
