"""`pfl-ops compare`: any tracked runs side by side."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pfl_ops.cli.checks import check_finite, check_output, check_work_folder
from pfl_ops.cli.options import TrackingUri, with_default
from pfl_ops.errors import PflOpsError, echo

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pfl_ops.reports.compare import Comparison, Line

WIDEST_NAME = 44  # columns of a line's name; a longer one is broken


def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|STUDY|EXPERIMENT]...",
            show_default=False,
            help="By name, with * for any, or by the beginning of a run's id; none: all runs.",
        ),
    ] = None,
    *,
    where: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="Of these, those that MLflow's search finds by it.")
    ] = None,
    tag: Annotated[
        list[str], typer.Option("--tag", metavar="KEY=VALUE", help="Of these, those with this tag; repeatable.")
    ] = [],  # noqa: B006  (Typer copies it)
    trials: Annotated[bool, typer.Option("--trials", help="The trials of studies too, not only their tests.")] = False,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="KEY",
            show_default=False,
            help=with_default("What decides: acc, local/worst, L2/local/mean, test/G/acc ...", "acc"),
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", metavar="FLOAT", help="Count the rounds until --metric, or else Acc(L), is there."),
    ] = None,
    at: Annotated[
        Literal["final", "best"],
        typer.Option(
            "--at",
            metavar="final|best",
            show_default=False,
            help=with_default("Values of the last round, or of each run's best.", "final"),
        ),
    ] = "final",
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE.html", help="Write a page with curves.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE.csv", help="Write a row a run.")] = None,
    latex: Annotated[Path | None, typer.Option("--latex", metavar="FILE.tex", help="Write the table.")] = None,
    tracking_uri: TrackingUri = None,
) -> None:
    """Compare tracked runs, trials and studies: which is best, by how much, and how sure that is.

    Repetitions of one setting are one line: mean ± standard deviation. A study means the test runs of its choice.
    """
    tags = _tags(tag)
    check_finite("--target", target)
    for flag, file in (("--html", html), ("--csv", csv), ("--latex", latex)):
        check_output(flag, file)
    check_work_folder(tracking_uri, "MLFLOW_TRACKING_URI")

    from pfl_ops.cli.output import err, out, say
    from pfl_ops.reports.compare import compare as compared

    comparison = compared(
        *(names or ()),
        where=where,
        tags=tags,
        trials=trials,
        metric=metric,
        target=target,
        at=at,
        with_clients=html is not None,
        tracking_uri=tracking_uri,
    )
    for line in comparison.complaints:
        say(err(), f"not a fair comparison: {line}")
    for line in comparison.remarks:
        say(err(), line)
    console = out()
    show(comparison, console)
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


OPTIONAL = ("seconds", "bytes", "best @ round", "last", "worst client", "p", "Acc(G)", "Acc(L)", "n")
"""Columns in the order in which they go where there is no room."""


def show(comparison: "Comparison", console: "Console") -> None:
    """Print it; on a narrow terminal with fewer columns, which are named."""
    from pfl_ops.cli.output import say

    there = _columns(comparison)
    droppable = [name for name in OPTIONAL if name in there and there[name] != comparison.metric]
    for n in range(len(droppable) + 1):
        table = _table(comparison, [name for name in there if name not in droppable[:n]])
        if console.measure(table, options=console.options.update(max_width=1000)).maximum <= console.width:
            break
    console.print(table)
    if n:
        say(console, f"no room for: {', '.join(droppable[:n])}")
    tested = any(line.difference and line.difference.p is not None for line in comparison.lines)
    if tested and "p" not in droppable[:n]:
        say(console, "p: paired t test over common seeds, corrected for the number of tests (Holm)")


def _columns(c: "Comparison") -> dict[str, str | None]:
    """Headings from the left, and the metric of those that show one in the line's stage."""
    from pfl_ops.reports.numbers import VIEWS, title_of

    columns: dict[str, str | None] = {"": None, "n": None, "stage": None, **VIEWS}
    columns |= {title_of(c.metric): c.metric, "vs best": None, "p": None}
    columns["best @ round" if c.at == "final" else "last"] = None
    if c.target is not None:
        columns[f"rounds to {c.target:g}"] = None
    return columns | {"bytes": None, "seconds": None}


def _table(c: "Comparison", shown: list[str]) -> "Table":
    """A row a line, and below it one for each other stage that was scored; settings stand under the name."""
    from rich.table import Table

    from pfl_ops.reports.numbers import count, title_of

    at = "last round" if c.at == "final" else "best round of each run"
    n = sum(len(line.runs) for line in c.lines)
    aim = f"; rounds to {title_of(c.target_metric)} ≥ {c.target:g}" if c.target is not None else ""
    title = f"{count(len(c.lines), 'setting')}, {count(n, 'run')}, {at}, by {title_of(c.metric)}{aim}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in shown:
        if not name:
            table.add_column(name, min_width=10, max_width=WIDEST_NAME, overflow="fold")
        else:
            table.add_column(name, justify="left" if name == "stage" else "right", no_wrap=True)
    for line in c.lines:
        for i, cells in enumerate(_rows(c, line)):
            table.add_row(*(cells.get(name, "") for name in shown), style="dim" if i else None)
    return table


def _rows(c: "Comparison", line: "Line") -> Iterator[dict[str, str]]:
    """The cells of a line by heading: first in its own stage, then in the others."""
    from rich.markup import escape

    from pfl_ops.reports.compared import ahead, other_round
    from pfl_ops.reports.numbers import VIEWS, chance, rounds_text, size, spread

    there = {name: metric for name, metric in _columns(c).items() if metric}
    first = {name: spread(line.values(metric, c.at)) for name, metric in there.items()}
    first |= {"": escape(line.label), "n": str(len(line.runs)), "stage": line.stage, "vs best": ahead(c, line)}
    first |= {"p": chance(line.difference.p) if line.difference else ""}
    first |= dict.fromkeys(("best @ round", "last"), other_round(c, line))
    if c.target is not None:
        first[f"rounds to {c.target:g}"] = rounds_text(line.rounds_to(c.target, c.target_metric))
    first["bytes"] = size(line.cost("cost/up_bytes", "cost/down_bytes"))
    first["seconds"] = spread(line.cost("cost/train_seconds"), 1)
    yield first
    others = [stage for stage in line.stages if stage != line.stage]
    for i, stage in enumerate(others or [""] * bool(line.settings)):
        cells = {name: spread(line.values(f"{stage}/{metric}", c.at)) for name, metric in VIEWS.items() if stage}
        yield cells | {"stage": stage, "": "" if i else escape(line.settings)}
