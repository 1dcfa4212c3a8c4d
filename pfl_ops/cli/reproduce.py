"""`pfl-ops reproduce`: the papers' tables and figures again, ours beside theirs."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_ops import tuning
from pfl_ops.cli.checks import check_data_dir, check_folder, one_of
from pfl_ops.cli.names import completion
from pfl_ops.cli.options import DataDir, DryRun, TrackingUri, execution_of, option, unread, with_flags
from pfl_ops.cli.output import err, interruptible, out, say
from pfl_ops.cli.run import PAGE, served
from pfl_ops.errors import PflOpsError, count, echo, in_a_line, together

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pfl_ops.papers import Cell, KeptRuns, ScaleName, Suite
    from pfl_ops.reports.suites.suites import SuiteSummary
    from pfl_ops.results import Result
    from pfl_ops.tuning.suites.cells import Reproduced
    from pfl_ops.tuning.suites.plans import CellRun, ReproductionPlan

_option = partial(option, panel="Reproducing")


def _names() -> list[str]:
    from pfl_ops.papers import TITLES, all_suites

    return [*TITLES, *(suite.name for suite in all_suites())]


@with_flags("device", "way", "threads")
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE|PAPER]...",
            autocompletion=completion(_names),
            help="fliu/table1, or all of a paper: fliu. None: all five papers; without --scale a plan of 15 minutes.",
        ),
    ] = None,
    *,
    scale: Annotated[
        str | None,
        _option(
            "Seconds a cell; about an hour a suite; the paper's size with a network for CPUs; the paper's own.",
            "smoke; without SUITE a plan of about 15 minutes",
            "smoke|small|medium|full",
        ),
    ] = None,
    only: Annotated[str | None, _option("These cells: 'path/*', '{path,lsqs}/{!local}'.", metavar="PATTERN")] = None,
    every: Annotated[bool, _option("At smoke: every cell, not one of each row and column.", flag="--all")] = False,
    listed: Annotated[bool, _option("What there is, and stop.", flag="--list")] = False,
    repetitions: Annotated[int | None, _option("Seeds of each cell.", "the scale's", "INT", 1, 10_000)] = None,
    concurrency: Annotated[int | None, _option("Cells at once.", "as many as fit", "INT", 1, 10_000)] = None,
    cpus: Annotated[
        str | None, _option("CPUs of a cell.", "1; on a GPU its share of them", "NUMBER", flag="--cpus-per-cell")
    ] = None,
    gpus: Annotated[
        str | None, _option("Share of a GPU of a cell.", "0.25 if there is one", "NUMBER", flag="--gpus-per-cell")
    ] = None,
    address: Annotated[str | None, _option("A Ray cluster to join.", metavar="auto|HOST:PORT")] = None,
    reports: Annotated[Path, _option("Where the reports go.", "reports", "FOLDER")] = Path("reports"),
    results: Annotated[
        Path | None,
        _option(
            "Also keep each run's numbers in a CSV file there, with a page of all claims: docs/results/README.md.",
            metavar="FOLDER",
        ),
    ] = None,
    until_decided: Annotated[
        bool,
        _option(
            "Then give further seeds to cells of undecided claims, the cheapest decision first.", flag="--until-decided"
        ),
    ] = False,
    hours: Annotated[
        float | None, _option("With --until-decided: start further seeds for so long.", "1", "NUMBER")
    ] = None,
    suite: Annotated[list[Path], _option("Suites of your own: docs/suites.md; repeatable.", metavar="FILE.py")] = [],  # noqa: B006  (Typer copies it)
    sets: Annotated[
        list[str],
        _option(
            "Change a setting in all cells that have it: training.lr=0.05; repeatable. Reports are kept apart.",
            metavar="PATH=VALUE",
            flag="--set",
        ),
    ] = [],  # noqa: B006
    choose: Annotated[
        Path | None,
        _option(
            "Run no cell, but the rule by which the suite's settings are chosen on validation data.",
            metavar="FILE.yaml",
        ),
    ] = None,
    choices: Annotated[
        Path | None,
        _option("Run the suites with what --choose wrote to this file. Reports are kept apart.", metavar="FILE.yaml"),
    ] = None,
    dry_run: DryRun = False,
    data_dir: DataDir = None,
    tracking_uri: TrackingUri = None,
    **flags: str | None,
) -> None:
    """Run published experiments again and report paper | ours | difference, and which claims hold.

    Without SUITE, --scale and options that select or change cells: DRDM's Table 3 and Fig. 5 at full, and the first
    rounds of a column of FLIU's Table I at medium, about 15 minutes on two cores. --scale smoke checks that everything
    runs. What is finished is never run again; stopped or killed, the same command goes on.
    """
    from pfl_ops.config.precedence import assignments
    from pfl_ops.papers import SCALES
    from pfl_ops.tracking.home import check_places

    planned = scale is None and not (
        names or only or every or suite or sets or listed or until_decided or choose or choices
    )
    size: ScaleName = one_of("--scale", scale or "smoke", SCALES)
    cpus_per_cell, gpus_per_cell = _number("--cpus-per-cell", cpus), _number("--gpus-per-cell", gpus, 0.0)
    if only is not None and not only.strip():
        raise PflOpsError("--only needs a pattern, as 'path/*'")
    check_folder("--reports", reports)
    check_folder("--results", results)
    check_data_dir(data_dir)
    changes = assignments(sets)
    own = _own(suite)
    chosen = [] if planned else _chosen(names or [], size, only, every, own, listed)
    if listed:
        _list(chosen if only else [(one, one.cells) for one, _ in chosen])
        return
    if choices is not None:
        chosen = _with_choices(chosen, choices, choose, results, size, every=not (names or suite))
    where: dict[str, Any] = {"data_dir": data_dir, "tracking_uri": tracking_uri, "execution": execution_of(flags)}
    check_places(tracking_uri)
    if hours is not None and not (until_decided and 0 < hours < math.inf):
        raise PflOpsError("--hours is a number above 0, and goes with --until-decided")
    if results is not None and (planned or size == "smoke"):
        raise PflOpsError("--results keeps runs at small, medium or full: give --scale")
    if until_decided and size == "smoke":
        raise PflOpsError("at scale smoke no claim is judged; --until-decided needs a larger scale")
    if choose is not None:
        more = only or every or sets or repetitions or until_decided or address or gpus or dry_run
        if more or len(chosen) != 1:
            raise PflOpsError(
                "--choose goes with one suite and says itself what runs: pfl-ops reproduce SUITE --choose FILE"
            )
        settings = {"concurrency": concurrency, "cpus_per_trial": cpus_per_cell, **where}
        _choose(chosen[0][0], size if scale else "full", choose, **settings)
        return

    from pfl_ops.cli.reproduce_results import problem_lines, show_results
    from pfl_ops.cli.reproduce_watch import ReproduceProgress

    if planned:
        plans = _default(repetitions, data_dir)
    else:
        plans = [tuning.plan(chosen, size, repetitions=repetitions, data_dir=data_dir, changes=changes)]
    for part in (part for plan in plans for part in plan.parts):
        say(err(), *(f"no run of {line}" for line in problem_lines(part.suite.name, part.problems)))
    say(err(), _unread(chain.from_iterable(plan.wanted for plan in plans), changes))
    kept = _known_results(results, [one for one, _ in chosen], size, changes, data_dir) if results is not None else {}
    keeper = _Keeper(reports, results, data_dir, tracking_uri, own)
    found: list[Reproduced] = []
    with interruptible():
        for plan in plans:
            with ReproduceProgress(dry_run) as watch:
                found += tuning.reproduce(
                    plan,
                    cpus_per_cell=cpus_per_cell,
                    gpus_per_cell=gpus_per_cell,
                    concurrency=concurrency,
                    address=address,
                    dry_run=dry_run,
                    hours=(hours or 1.0) if until_decided else None,
                    kept=kept,
                    on_suite=keeper.keep,
                    on_event=watch,
                    **where,
                )
    if not dry_run:
        show_results(found, keeper.summaries, reports, planned, data_dir)
    if wrong := keeper.failures:
        raise together({what: in_a_line(why) for what, why in wrong.items()}) from next(iter(wrong.values()))


def _unread(jobs: "Iterable[CellRun]", changes: Mapping[str, Any]) -> str:
    """Return one line on changed settings that change no result of some cells, or no cell; "": there are none."""
    from pfl_ops.papers.overrides import single_paths

    cells: Counter[str] = Counter()
    idle: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        if job.number == 0:
            paths = list(single_paths(job.changes))
            cells.update(paths)
            idle.update(unread(job.experiment, paths).items())
    told = [
        f"{path}{f' in {n} of {cells[path]} cells that have it' if n < cells[path] else ''} ({why})"
        for (path, why), n in idle.items()
    ]
    told += [f"{path} (no chosen cell is changed by it)" for path in single_paths(changes) if path not in cells]
    return f"without effect: {'; '.join(told)}" if told else ""


def _known_results(
    folder: Path, suites: "list[Suite]", size: "ScaleName", changes: Mapping[str, Any], data_dir: str | None
) -> "dict[str, KeptRuns]":
    """The runs that the results files of some suites have, by suite; what does not count in them is said."""
    from pfl_ops.papers import results_files

    for name, rows in results_files.outdated(folder, suites, size, changes, data_dir).items():
        say(
            err(),
            f"{name}: {count(rows, 'run')} of other settings, data or code than the suite has now, or of numbers in "
            "another unit or of another round, which do not count and are removed when the file is written",
        )
    return results_files.known(folder, suites, size, changes, data_dir)


@dataclass
class _Keeper:
    """Keeps what there is of a suite when its last run has ended; a fault of that stops no other suite.

    Attributes:
        reports: their folder. results: that of the results files; None: none are written. own: the user's own suites.
        summaries: of the suites so far. failures: what could not be kept, and why.
    """

    reports: Path
    results: Path | None
    data_dir: str | None
    tracking_uri: str | None
    own: "tuple[Suite, ...]"
    summaries: "list[SuiteSummary]" = field(default_factory=list)
    failures: dict[str, Exception] = field(default_factory=dict)

    def keep(self, found: "Reproduced") -> None:
        """Write the report of a suite, and its results."""
        try:
            self.summaries.append(self._report(found))
        except Exception as error:
            self.failures[f"no report of {found.suite.name}"] = error
        try:
            if self.results is not None:
                self._write_results(found, self.results)
        except Exception as error:
            self.failures[f"no results of {found.suite.name}"] = error

    def _report(self, found: "Reproduced") -> "SuiteSummary":
        """Write the report of a suite, in its folder and in its run."""
        from pfl_ops.reports.suites import suites

        def counts(cell: str) -> "NDArray[np.int64] | None":
            jobs = found.part.jobs.get(cell)
            return jobs[0].experiment.clients(data_dir=self.data_dir).table if jobs else None

        run = replace(found, link=lambda outcome: page(outcome, self.tracking_uri), counts=counts)
        summary = suites.SuiteSummary.of_run(run)
        found.keep(suites.keep(run, self.reports), summary.metrics)
        return summary

    def _write_results(self, found: "Reproduced", folder: Path) -> None:
        """Write the results of a suite as a file, and the pages of all files in the folder.

        Suites of the package count on the page of claims if the folder has some of them.
        """
        from pfl_ops.files import alone_in
        from pfl_ops.papers import all_suites, results_files
        from pfl_ops.reports.suites import results_pages

        done = {cell: each for cell, each in found.outcomes.items() if cell not in found.stand_ins}
        lost = {cell: each for cell, each in found.diverged.items() if cell not in found.stand_ins}
        results_files.write(folder, found.suite, found.scale, done, self.data_dir, found.changes, lost)
        with alone_in(folder):  # else the pages may lack rows that another process has just written
            kept = results_files.read(folder, all_suites(self.own), self.data_dir)
            known = self.own if self.own and all(one.suite.file for one in kept) else all_suites(self.own)
            results_pages.write(folder, kept, known)


def _number(flag: str, given: str | None, allowed: float | None = None) -> float | None:
    """A flag's value: `allowed`, or above 0."""
    try:
        number = None if given is None else float(given)
    except ValueError:
        number = -1.0
    if number is not None and number != allowed and not 0 < number < math.inf:
        raise PflOpsError(f"{flag} must be {'0 or ' if allowed == 0 else ''}a number above 0, got '{echo(given)}'")
    return number


def _choose(suite: "Suite", scale: "ScaleName", file: Path, **settings: Any) -> None:
    """Choose the settings of a suite's methods by its rule, and write them to a file; settings: see `choosing`."""
    from pfl_ops.cli.checks import check_output
    from pfl_ops.config import fields
    from pfl_ops.files import write_named

    if scale == "smoke":
        raise PflOpsError("--choose tunes the experiments of scale full, or of --scale medium or small")
    if suite.rule is None:
        raise PflOpsError(f"{suite.name} has no rule of choice; drdm/table3 has one")
    check_output("--choose", file, (".yaml", ".yml"))

    from pfl_ops.tuning.commands.choosing import choose

    say(err(), f"{len(suite.rule.cells)} methods, each {suite.rule.budget}")
    with interruptible(), tuning.StudyProgress() as show:
        found = choose(suite, suite.rule, scale=scale, on_event=show, **settings)
    write_named(file, found.to_yaml())
    for label, point in found.methods.items():
        values = ", ".join(f"{path} {fields.show(value)}" for path, value in point.items())
        say(out(), f"{label}: {suite.rule.metric} {found.scores[label]:.4f} with {values}")
    given = f"{suite.command} --choices {file}{'' if scale == 'full' else f' --scale {scale}'}"
    say(out(), f"\nchoices: {file}; run the suite with them: {given}")


def _with_choices(
    chosen: "list[tuple[Suite, tuple[Cell, ...]]]",
    file: Path,
    choose: Path | None,
    results: Path | None,
    scale: "ScaleName",
    *,
    every: bool,
) -> "list[tuple[Suite, tuple[Cell, ...]]]":
    """The suites with the settings of a file of choices, and their cells."""
    from pfl_ops.papers.chosen import with_file

    if choose is not None:
        raise PflOpsError("--choose makes a file of choices, --choices runs a suite with one: give one of them")
    if results is not None:
        raise PflOpsError(
            "--results keeps the runs of a suite as it is: put the choices into it first (docs/suites.md)"
        )
    cells = {suite.name: of_suite for suite, of_suite in chosen}
    given = with_file([suite for suite, _ in chosen], file, scale, every=every)
    return [(suite, cells[suite.name]) for suite in given]


def _default(repetitions: int | None, data_dir: str | None) -> "list[ReproductionPlan]":
    """The plans of a call without names and scale."""
    from pfl_ops.papers.default_plan import DEFAULT_PLAN

    made = []
    for call in DEFAULT_PLAN:
        chosen = [
            one for suite, only in call.suites.items() for one in _chosen([suite], call.scale, only or None, True)
        ]
        n = repetitions or call.repetitions
        made.append(tuning.plan(chosen, call.scale, repetitions=n, data_dir=data_dir, changes=call.changes))
    return made


def _own(files: list[Path]) -> "tuple[Suite, ...]":
    """The suites of the user's own files."""
    if not files:
        return ()
    from pfl_ops.papers import all_suites
    from pfl_ops.papers.user_suites import load_suites

    return load_suites(files, [one.name for one in all_suites()])


def _chosen(
    names: list[str], scale: str, only: str | None, every: bool, own: "tuple[Suite, ...]" = (), listed: bool = False
) -> "list[tuple[Suite, tuple[Cell, ...]]]":
    """The suites that are meant, with their cells: without names the user's own or the papers', for a list all."""
    from pfl_ops.papers import TITLES, all_suites, find, suites
    from pfl_ops.papers.expression import matching

    papers = {*TITLES, *(one.paper for one in own)}
    meant = [one for name in names for one in (suites(name, own) if name in papers else (find(name, own),))]
    meant = meant or list(all_suites(own) if listed else own or suites())
    found = []
    for one in {one.name: one for one in meant}.values():
        cells = one.cells if every or only or scale != "smoke" else one.sample()
        if only:
            try:
                wanted = matching(only, one.labels)
            except PflOpsError as error:
                raise PflOpsError(f"--only in {one.name}: {error}") from None
            cells = tuple(cell for cell in cells if cell.name in wanted)
            if not cells:
                raise PflOpsError(f"{one.name} has no cell '{echo(only)}'")
        found.append((one, cells))
    return found


def _list(chosen: "list[tuple[Suite, tuple[Cell, ...]]]") -> None:
    """Print a line a suite: the cells that are meant, the numbers published of them, the claims about them alone."""
    from pfl_ops.cli.terminal_tables import plain_table

    counts = ("cells", "n", "published", "claims")
    table = plain_table("suite", "shows", numbers=counts, no_wrap=("suite", "cells", "n"))
    for suite, cells in chosen:
        meant = {cell.name for cell in cells}
        published = sum(cell in meant for cell, _ in suite.published)
        claims = sum(claim.cells(suite.labels, suite.names) <= meant for claim in suite.claims)
        n = suite.repetitions if suite.states_repetitions else f"({suite.repetitions})"
        numbers = (len(cells), n, published or "–", claims or "–")
        table.add_row(suite.name, suite.title, *map(str, numbers))
    out().print(table)
    say(
        out(),
        "\nrun one with: pfl-ops reproduce SUITE --scale smoke|small|medium|full "
        "(n: repetitions at full, in brackets where the paper states none)",
    )


def page(outcome: "Result", tracking_uri: str | None) -> str | None:
    """A run's page in MLflow, as `pfl-ops ui` or the server has it."""
    if outcome.run_id is None or outcome.experiment_id is None:
        return None
    return f"{served(tracking_uri) or PAGE}/#/experiments/{outcome.experiment_id}/runs/{outcome.run_id}"
