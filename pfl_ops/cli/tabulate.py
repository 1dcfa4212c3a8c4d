"""`pfl-ops tabulate` and `pfl-ops replay`: a table of trials for research on tuners, and studies replayed on it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from pfl_ops.cli import options
from pfl_ops.cli.benchmark import experiments_of
from pfl_ops.cli.checks import check_data_dir, check_output, one_of
from pfl_ops.cli.options import Config, DataDir, DryRun, Plugins, Preset, Sets, option, with_flags
from pfl_ops.cli.output import err, out, say
from pfl_ops.cli.tune import METHODS, methods_of
from pfl_ops.errors import PflOpsError, count, format_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from pfl_ops.federation.settings import Execution
    from pfl_ops.tuning.tables.regrets import Regret
    from pfl_ops.tuning.tables.table_plan import TablePlan, TableRun

ENDING = ".parquet"
TELL_EVERY = 10.0  # seconds between two lines of progress

_option = partial(option, panel="Table")
_replay = partial(option, panel="Replay")


@with_flags(helps={"seed": "The first of the --seeds.", "repetitions": None})
def tabulate(
    algorithm: Annotated[list[str] | None, METHODS] = None,
    *,
    to: Annotated[
        Path | None, _option("The table; runs that it has stay.", metavar="FILE.parquet", flag="--out")
    ] = None,
    configurations: Annotated[
        int | None, _option("Configurations of each method, drawn from its space.", "40", "INT")
    ] = None,
    grid: Annotated[
        list[str], _option("Instead of drawn ones: all combinations, repeatable.", metavar="PATH=V1,V2")
    ] = [],  # noqa: B006
    seeds: Annotated[int, _option("Seeds of each configuration: seed, seed + 1, ...", "15", "INT")] = 15,
    environments: Annotated[
        str | None, _option("Environments of each configuration: path,ls.", "the experiment's", "NAMES")
    ] = None,
    vary: Annotated[
        list[str], _option("One environment a value, as partition.alpha=0.1,0.5; repeatable.", metavar="PATH=V1,V2")
    ] = [],  # noqa: B006  (Typer copies it)
    metric: Annotated[str | None, _option("What a study would optimise.", "the method's, val/L1/acc", "KEY")] = None,
    search_space: Annotated[Path | None, _option("What varies, as YAML.", "the method's own", "FILE|DIR")] = None,
    concurrency: Annotated[int | None, _option("Runs at once.", "as many as fit", "INT", 1, 10_000)] = None,
    config: Config = None,
    preset: Preset = None,
    sets: Sets = [],  # noqa: B006
    dry_run: DryRun = False,
    data_dir: DataDir = None,
    plugin: Plugins = [],  # noqa: B006
    **flags: str | None,
) -> None:
    """Run configurations of methods with many seeds, on validation and on test data, into one Parquet file.

    For research on tuners (pfl-ops replay FILE): it opens the test data for every configuration.
    Fields that a flag or --set gives are held. Ctrl-C leaves FILE.runs, from which the same command goes on.
    """
    from pfl_ops import spaces
    from pfl_ops.config.precedence import assignments
    from pfl_ops.federation.loop.estimate import duration
    from pfl_ops.tuning.commands.terms import check_build
    from pfl_ops.tuning.studies.environments import names_given, parse_values
    from pfl_ops.tuning.studies.limits import StudyLimits
    from pfl_ops.tuning.studies.settings import Settings
    from pfl_ops.tuning.tables.table_plan import CONFIGURATIONS, TablePlan
    from pfl_ops.tuning.tables.table_plan import environments as environments_of_table
    from pfl_ops.tuning.tables.tabulation import missing_runs
    from pfl_ops.tuning.tables.tabulation import tabulate as run

    if to is None:
        raise PflOpsError("--out FILE.parquet is missing: the table's file")
    check_output("--out", to, {ENDING})
    check_data_dir(data_dir)
    methods = methods_of(algorithm)
    named, varied = names_given(environments, "--environments"), parse_values(vary)
    axes = parse_values(grid, "--grid", "training.lr=0.01,0.1")
    if axes and configurations is not None:
        raise PflOpsError("--grid gives the configurations: leave out --configurations")
    options.load_plugins(plugin)
    held = {**options.settings_of(options.EXPERIMENT, flags), **assignments(sets)}
    for key in axes:
        if key in held or key in varied:
            raise PflOpsError(f"--grid {key} is set by a flag, --set or --vary, too: leave one of them out")
    if "repetitions" in held:
        raise PflOpsError("a table has --seeds, not --repetitions")
    execution = options.execution_of(flags)
    each = experiments_of(methods, flags, config=config, preset=preset, sets=sets, data_dir=data_dir) if methods else []
    if not each:
        raise PflOpsError("name at least one method: pfl-ops tabulate fedavg,fliu --out FILE.parquet")
    settings = []
    for one in each:
        space = spaces.read(search_space, one.algorithm.name)
        space = spaces.grid_space(axes, space) if axes else space
        if axes or search_space is not None:  # as `tune` takes a file: epochs in place of steps that are recommended
            one = spaces.in_unit_of(space, one, held)
        none = StudyLimits(confirm=0)  # the seeds of a confirmation are not run
        settings.append(Settings.of(one, space, none, metric, hold=held, environments=named, vary=varied or None))
    plan = TablePlan.of(settings, CONFIGURATIONS if configurations is None else configurations, seeds, axes)
    for made in settings:
        for environment in environments_of_table(made):
            label = f"{made.experiment.algorithm.name}, {environment.name}"
            check_build(environment.of(made.experiment), data_dir, execution, label)
    anyway = "" if axes else options.searched_anyway(settings, config=config, preset=preset)
    say(out() if dry_run else err(), anyway, options.unread_by(settings, held, config))
    if dry_run:
        say(out(), _estimated(plan, missing_runs(plan, to, data_dir), execution, data_dir, concurrency))
        return
    told = [0.0]

    def tell(done: int, wanted: int, seconds: float) -> None:
        if done == wanted or seconds - told[0] >= TELL_EVERY:
            told[0] = seconds
            say(err(), f"{done} of {count(wanted, 'run')} finished, {duration(seconds)} in this call")

    if not to.exists():  # else it may be another table, which is refused in one line
        say(err(), f"{len(plan.runs)} runs, half of them on test data; those that are finished are looked up ...")
    table = run(plan, to, data_dir=data_dir, execution=execution, concurrency=concurrency, on_progress=tell)
    openings = len(plan.runs) // 2
    size = format_bytes(to.stat().st_size)
    say(
        out(),
        f"{to}: {count(len(table.frame), 'row')} of {count(len(plan.runs), 'run')}, {size}; test data were opened "
        f"{count(openings, 'time')}",
    )


def _estimated(
    plan: "TablePlan",
    missing: "Sequence[TableRun]",
    execution: "Execution",
    data_dir: str | None,
    concurrency: int | None,
) -> str:
    """Return the number of runs, and the time of those that are missing, from a measured round of each method."""
    from pfl_ops.cli.search_estimates import mean_estimate
    from pfl_ops.federation.loop.estimate import duration
    from pfl_ops.tuning.resources.resource_request import ResourceRequest

    asked = ResourceRequest(concurrency=concurrency)
    at_once, single = asked.at_once(max(1, len(missing)), execution.device), asked.estimated(execution)
    seconds, starting = 0.0, 0.0
    for settings in plan.settings:
        number = sum(run.settings is settings for run in missing)
        estimate = mean_estimate(settings, data_dir, single)
        starting = estimate.with_startup().of_trials(0, at_once)
        seconds += estimate.of_trials(number, at_once)
    each = ", ".join(str(len(points)) for points in plan.points)
    runs_text = (
        f"{len(plan.runs)} runs, half of them on test data ({each} configuration{'s' * (each != '1')}, "
        f"{count(len(plan.seeds), 'seed')})"
    )
    if not missing:
        return f"{runs_text}, all finished: the file would be written, and nothing computed"
    done = f"; {len(missing)} of them are left" if len(missing) < len(plan.runs) else ""
    return f"{runs_text}{done}, {at_once} at once, about {duration(starting + seconds)}"


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="A table of `tabulate`.")],
    *,
    studies: Annotated[int, _replay("Studies of each method in each environment.", "30", "INT")] = 30,
    trials: Annotated[int, _replay("Trials of a search.", "20", "INT")] = 20,
    confirm: Annotated[int, _replay("New seeds of the confirmation, at most.", "3", "INT")] = 3,
    confirm_top: Annotated[int, _replay("Configurations that are confirmed.", "2", "INT")] = 2,
    random_start: Annotated[int, _replay("Trials before the sampler's model proposes any.", "8", "INT")] = 8,
    grace: Annotated[
        int | None, _replay("First round in which a trial can be stopped.", "the first scored one", "INT")
    ] = None,
    scheduler: Annotated[
        str | None, _replay("Stop bad trials early, or not.", "asha; several seeds: none", "asha|paired|none")
    ] = None,
    sampler: Annotated[str, _replay("Optuna's TPE, or random points.", "tpe", "tpe|random")] = "tpe",
    seeds_per_trial: Annotated[int, _replay("Runs of a trial, one a seed; its value is their mean.", "1", "INT")] = 1,
    seed: Annotated[int, _replay("Of the orders of seeds and of the samplers.", "0", "INT", 0)] = 0,
    to: Annotated[Path | None, _replay("Write every replayed study.", metavar="FILE.csv", flag="--csv")] = None,
) -> None:
    """Replay studies on a table of trials: the regret of a confirmed choice beside that of the best value.

    Both have the same samples: without a confirmation the search has more trials.
    The regret is the best mean on test data among all configurations less the mean of the choice.
    Both means are over seeds that neither the search nor the confirmation had.
    """
    from pfl_ops.files import write_named
    from pfl_ops.tuning.studies.settings import Scheduler
    from pfl_ops.tuning.tables import regrets
    from pfl_ops.tuning.tables import replay as replays
    from pfl_ops.tuning.tables.trial_table import TrialTable

    check_output("--csv", to, {".csv"})
    rule = replays.StudyRule(
        trials,
        confirm,
        confirm_top,
        one_of("--scheduler", scheduler, get_args(Scheduler)),
        grace,
        random_start,
        one_of("--sampler", sampler, get_args(replays.Sampler)),
        seeds_per_trial,
    )
    problems = TrialTable.read(file).problems()
    for problem in problems:
        replays.check(problem, rule, studies)
    found: list[replays.ReplayedStudy] = []
    for problem in problems:
        say(err(), f"{problem.method}, {problem.environment}: {count(studies, 'study')} ...")
        found += replays.replay(problem, rule, studies=studies, seed=seed)
    out().print(_table(regrets.regrets(found)), highlight=False)
    say(out(), *regrets.notes(found, problems))
    if to is not None:
        say(out(), f"studies  {write_named(to, regrets.as_csv(found))}")


def _table(rows: "list[Regret]") -> "Table":
    from pfl_ops.cli.terminal_tables import plain_table

    heads = ("studies", "first pick", "confirmed", "best value, equal samples", "difference", "changed")
    title = "mean regret on test data [95 % interval]"
    table = plain_table("", numbers=heads, padding=(0, 2, 0, 0), title=title)
    for row in rows:
        cells = [_cell(one) for one in (row.first, row.confirm, row.argmax, row.difference)]
        table.add_row(row.label, str(row.n), *cells, f"{100 * row.changed:.0f} %")
    return table


def _cell(value: "tuple[float, tuple[float, float] | None]") -> str:
    mean, interval = value
    return f"{mean:.4f}" + (f" [{interval[0]:.4f}, {interval[1]:.4f}]" if interval else "")
