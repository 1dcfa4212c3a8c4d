"""`pfl-ops tune`: a study, from its estimate to its best configuration."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_ops import tuning
from pfl_ops.cli import options
from pfl_ops.cli.benchmark import REPORTS, experiments_of, run_benchmark
from pfl_ops.cli.checks import check_data_dir, check_work_folder
from pfl_ops.cli.names import completion_of_several, names_of
from pfl_ops.cli.options import Config, DataDir, DryRun, Plugins, Preset, Sets, TrackingUri, option, with_flags
from pfl_ops.cli.output import err, interruptible, out, say
from pfl_ops.cli.run import look_closer
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.files import check_writable

if TYPE_CHECKING:
    from pfl_ops.cli.search_estimates import SearchPlace
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.tuning import Settings, Study

PANEL = "Tuning"
METHODS = typer.Argument(
    metavar="ALGORITHM[,...]",
    autocompletion=completion_of_several(names_of("algorithms")),
    help="The method, or several to compare: pfl-ops list algorithms. One may stand in --config instead.",
)


_option = partial(option, panel=PANEL)


@with_flags(
    helps={
        "seed": "Seed of the trials, and of the first test run.",
        "repetitions": "Test runs of the choice, with seeds seed, seed + 1, ...; 0: test data stay closed.",
    }
)
def tune(
    algorithm: Annotated[list[str] | None, METHODS] = None,
    *,
    trials: Annotated[
        int | None, _option("Configurations to try.", "20; any number with --hours, --samples", "INT", 1, 100_000)
    ] = None,
    hours: Annotated[
        float | None, _option("Hours of the search; the first budget that is spent ends it.", metavar="FLOAT")
    ] = None,
    samples: Annotated[float | None, _option("Gradient samples of all trials, each counted.", metavar="INT")] = None,
    terminate: Annotated[
        int | None, _option("Trials in a row without a better value that end the search.", "0", "INT")
    ] = None,
    seeds_per_trial: Annotated[
        int | None, _option("Runs of a trial, one a seed; its value is their mean.", "1", "INT")
    ] = None,
    environments: Annotated[
        str | None, _option("Environments of each trial: path,ls; the score there by FedAvg's.", metavar="NAMES")
    ] = None,
    vary: Annotated[
        list[str], _option("One environment a value, as partition.alpha=0.1,0.5; repeatable.", metavar="PATH=V1,V2")
    ] = [],  # noqa: B006
    held_out: Annotated[
        str | None, _option("Environments opened once, at the end, like test data.", metavar="NAMES")
    ] = None,
    aggregate: Annotated[str | None, _option("A trial's value over environments.", "mean", "mean|worst")] = None,
    metric: Annotated[
        list[str], _option("What to optimise; repeated: a Pareto front.", "the method's, val/L1/acc", "KEY")
    ] = [],  # noqa: B006  (Typer copies it)
    scheduler: Annotated[
        str | None, _option("Stop bad trials early, or not.", "asha for one metric", "asha|paired|none")
    ] = None,
    search_space: Annotated[Path | None, _option("What may vary, as YAML.", "the method's own", "FILE|DIR")] = None,
    cpus_per_trial: Annotated[
        str | None, _option("CPUs of a trial; auto: as measured.", "1; on a GPU its share of them", "NUMBER|auto")
    ] = None,
    gpus_per_trial: Annotated[
        str | None, _option("Share of a GPU; 0.25: four trials on each.", "auto if there is one", "NUMBER|auto")
    ] = None,
    concurrency: Annotated[int | None, _option("Trials at once.", "as many as fit", "INT", 1, 10_000)] = None,
    confirm: Annotated[
        int | None, _option("New seeds, at most, to repeat the best configurations with; 0: none.", "3", "INT")
    ] = None,
    confirm_top: Annotated[int | None, _option("Number of these configurations.", "2", "INT")] = None,
    from_study: Annotated[
        str | None, _option("An earlier study, whose best configurations are tried first.", metavar="NAME")
    ] = None,
    name: Annotated[str | None, _option("The study's name.", "ALGORITHM-DATA-PARTITION-HASH", "NAME")] = None,
    resume: Annotated[bool, _option("Go on with a study that was stopped.", "no", flag="--resume/--no-resume")] = False,
    storage: Annotated[
        str | None, _option("Where the study lies.", "studies.db in the work folder", "URI|FILE.log")
    ] = None,
    address: Annotated[str | None, _option("A Ray cluster to join.", "this machine alone", "auto|HOST:PORT")] = None,
    config: Config = None,
    preset: Preset = None,
    sets: Sets = [],  # noqa: B006
    dry_run: DryRun = False,
    data_dir: DataDir = None,
    tracking_uri: TrackingUri = None,
    plugin: Plugins = [],  # noqa: B006
    **flags: str | None,
) -> None:
    """Tune a method on validation data, confirm its best configurations with new seeds, then test the choice.

    Several methods, with commas between them, get the same budget each, and one leaderboard.
    Fields that a flag or --set gives are held; the rest of the method's search space varies (pfl-ops show NAME).
    """
    from pfl_ops.cli.search_estimates import SearchPlace
    from pfl_ops.config.precedence import assignments
    from pfl_ops.tracking.home import check_places
    from pfl_ops.tuning.commands.benchmark import members
    from pfl_ops.tuning.resources.resource_request import ResourceRequest, check_request
    from pfl_ops.tuning.session.begin import check
    from pfl_ops.tuning.studies.environments import check_environments, names_given, parse_values
    from pfl_ops.tuning.studies.limits import StudyLimits
    from pfl_ops.tuning.studies.parts import check_seeds
    from pfl_ops.tuning.studies.study_database import check_storage

    check_places(tracking_uri)
    if storage:
        check_storage(storage)
    check(0, name)
    limits = StudyLimits(trials, hours, samples, terminate, confirm, confirm_top)
    if confirm_top is not None and (confirm == 0 or len(metric) > 1):
        why = "nothing is confirmed" if confirm == 0 else "a choice by several objectives is not confirmed"
        raise PflOpsError(f"--confirm-top has no effect: {why}; leave it out")
    check_seeds(seeds_per_trial)
    in_environments: dict[str, Any] = {
        "environments": names_given(environments, "--environments"),
        "held_out": names_given(held_out, "--held-out"),
        "vary": parse_values(vary) or None,
        "aggregate": aggregate,
    }
    check_environments(**in_environments)
    several_environments = bool(in_environments["environments"] or in_environments["vary"])
    check_data_dir(data_dir)
    methods = methods_of(algorithm)
    if len(methods) > 1 and several_environments:
        raise PflOpsError(f"environments are for one method, got {', '.join(methods)}; tune one after the other")
    if len(methods) > 1 and from_study:
        raise PflOpsError(f"--from-study is for one method, got {', '.join(methods)}: all methods try the same first")
    asked = ResourceRequest.of(cpus_per_trial, gpus_per_trial, concurrency)
    options.load_plugins(plugin)
    held = {**options.settings_of(options.EXPERIMENT, flags), **assignments(sets)}
    execution = options.execution_of(flags)
    check_request(asked, execution.device, address)
    tests = held.pop("repetitions", None)
    if _is_zero(tests):  # of `tune` alone: an experiment has one or more
        flags = {flag: text for flag, text in flags.items() if flag != "repetitions"}
        sets = [text for text in sets if text.partition("=")[0].strip() != "repetitions"]
    changed = held or config or preset or metric or scheduler or search_space or several_environments
    goes_on = bool(resume and name and not changed)  # as it was begun: what the message of Ctrl-C tells people to type
    if resume and name and changed and not (methods or config or preset or "algorithm.name" in held):
        given = {"--metric": metric, "--scheduler": scheduler, "--search-space": search_space}
        given |= {"--environments": environments, "--vary": vary}
        extra = ", ".join([*held, *(option for option, value in given.items() if value)])
        raise PflOpsError(
            f"--name {name} --resume without a method goes on as it was begun; leave out {extra}, or name the method "
            "and all settings, as when it was begun"
        )
    if goes_on:
        check_work_folder(storage)
    command = _TuneCommand(
        methods=methods,
        described={"flags": flags, "config": config, "preset": preset, "sets": sets, "data_dir": data_dir},
        searched={
            "space": search_space,
            "limits": limits,
            "metric": metric or None,
            "scheduler": scheduler,
            "hold": held,
            "seeds_per_trial": seeds_per_trial,
        },
        in_environments=in_environments,
        place=SearchPlace(asked, execution, address, data_dir),
        tests=tests,
        name=name,
        resume=resume,
        from_study=from_study,
        storage=storage,
        tracking_uri=tracking_uri,
        dry_run=dry_run,
    )
    begun = members(str(name), storage=storage) if goes_on and len(methods) != 1 else {}
    if begun:
        command.go_on_with_benchmark(begun)
    elif len(methods) > 1:
        command.begin_benchmark()
    elif goes_on:
        command.go_on_with_study()
    else:
        command.begin_study()


@dataclass(frozen=True)
class _TuneCommand:
    """A command line, checked as far as it can be without a study.

    Attributes:
        methods: named; []: that of a file, or those of what goes on.
        described: the arguments of `experiment_of` besides the method. searched: those of `Settings.of` that a
            benchmark has as well. in_environments: those that a study alone has.
        tests: test runs, by a flag or --set; None: not given.
        name: of the study or benchmark. The other attributes: as `tuning.tune` has them.
    """

    methods: list[str]
    described: dict[str, Any]
    searched: dict[str, Any]
    in_environments: dict[str, Any]
    place: "SearchPlace"
    tests: Any
    name: str | None
    resume: bool
    from_study: str | None
    storage: str | None
    tracking_uri: str | None
    dry_run: bool

    def begin_benchmark(self) -> None:
        """Run a study for each method that was named."""
        experiments = experiments_of(self.methods, **self.described)
        self._run_benchmark(experiments, self._tests_of(experiments[0]))

    def go_on_with_benchmark(self, begun: "Mapping[str, Settings]") -> None:
        """Run what is left of the studies of a benchmark; `begun`: method -> its study, as recorded."""
        if self.methods and set(self.methods) != set(begun):
            raise PflOpsError(f"benchmark '{self.name}' compares {', '.join(begun)}, not {', '.join(self.methods)}")
        self._run_benchmark(None, self._tests_recorded(next(iter(begun.values()))))

    def begin_study(self) -> None:
        """Run a study of the method that was named, or of that of a file."""
        experiment = options.experiment_of(self.methods[0] if self.methods else None, **self.described)
        settings = tuning.Settings.of(experiment, **self.searched, **self.in_environments)
        given, warm = self.in_environments, ""
        if self.from_study:
            check_work_folder(self.storage)
            taken = tuning.started_from(settings, self.from_study, storage=self.storage)
            settings, warm = taken.first_in(settings), str(taken)
            given = {**given, "from_study": self.from_study}
        self._run_study(experiment, settings, self._tests_of(experiment), given, warm)

    def go_on_with_study(self) -> None:
        """Run what is left of a study."""
        if self.from_study:
            raise PflOpsError("--from-study is for a new study; this one keeps the configurations that it tried first")
        from pfl_ops.tuning.studies.parts import check_same_seeds

        settings = tuning.recorded(str(self.name), storage=self.storage).limited(self.searched["limits"])
        check_same_seeds(self.searched["seeds_per_trial"], str(self.name), settings.seeds_per_trial)
        tuned = settings.experiment.algorithm.name
        if self.methods not in ([], [tuned]):
            raise PflOpsError(f"study '{self.name}' tunes {tuned}, not {self.methods[0]}")
        self._run_study(None, settings, self._tests_recorded(settings))

    def _tests_of(self, experiment: "Experiment") -> int:
        """Return the number of test runs of what begins."""
        return 0 if _is_zero(self.tests) else experiment.repetitions

    def _tests_recorded(self, settings: "Settings") -> int:
        """Return the number of test runs of what goes on: as given, else as in the last call."""
        if self.tests is None:
            return settings.finals
        return 0 if _is_zero(self.tests) else settings.experiment.override({"repetitions": self.tests}).repetitions

    @property
    def _given(self) -> dict[str, Any]:
        """The arguments that `tuning.tune` and `benchmark` share."""
        searched = {key: value for key, value in self.searched.items() if key != "limits"}
        return {
            **asdict(self.searched["limits"]),
            **searched,
            "cpus_per_trial": self.place.asked.cpus,
            "gpus_per_trial": self.place.asked.gpus,
            "concurrency": self.place.asked.concurrency,
            "storage": self.storage,
            "name": self.name,
            "resume": self.resume,
            "address": self.place.address,
            "tracking_uri": self.tracking_uri,
            "data_dir": self.place.data_dir,
            "execution": self.place.execution,
        }

    def _remarks(self, studies: "Collection[Settings]") -> list[str]:
        """Return the lines on values of a file or preset that are searched, and on settings without effect."""
        anyway = options.searched_anyway(studies, config=self.described["config"], preset=self.described["preset"])
        return [anyway, options.unread_by(studies, self.searched["hold"], self.described["config"])]

    def _tell(self, lines: Iterable[str]) -> None:
        """Print the lines of an estimate: what a dry run is for, else beside the result."""
        say(out() if self.dry_run else err(), *lines)

    def _run_benchmark(self, experiments: "Sequence[Experiment] | None", finals: int) -> None:
        """Check, estimate and run a benchmark, and report it; `experiments`: one a method, none: as recorded."""
        from pfl_ops.cli.search_estimates import benchmark_lines
        from pfl_ops.tuning.commands.planning import begun_studies, benchmark_plans
        from pfl_ops.tuning.session.begin import data_folders, readable

        check_writable(REPORTS, "the folder of the report", "run this in another folder")
        studies, folders = readable(self.storage), data_folders(self.place.data_dir, self.place.address)
        plans = benchmark_plans(
            experiments,
            studies=studies,
            data_dir=folders,
            name=self.name,
            resume=self.resume,
            final_repetitions=finals,
            **self.searched,
        )
        found = begun_studies(plans, studies, folders, self.resume)
        remarks = self._remarks([each.plan.settings for each in found])
        self._tell(benchmark_lines(found, self.place, folders, remarks))
        if not self.dry_run:
            run_benchmark(experiments, finals, self._given)

    def _run_study(
        self,
        experiment: "Experiment | None",
        settings: "Settings",
        finals: int,
        given: Mapping[str, Any] = {},
        warm: str = "",
    ) -> None:
        """Check, estimate and run a study, and report it; `given`: arguments of a study alone, `warm`: on its start."""
        from pfl_ops.cli.search_estimates import study_lines
        from pfl_ops.tuning.commands.planning import study_plan
        from pfl_ops.tuning.session.begin import data_folders

        check_writable(REPORTS, "the folder of the report", "run this in another folder")
        found = study_plan(
            experiment,
            settings,
            finals,
            limits=self.searched["limits"],
            name=self.name,
            resume=self.resume,
            storage=self.storage,
            data_dir=self.place.data_dir,
            execution=self.place.execution,
            address=self.place.address,
        )
        folders = data_folders(self.place.data_dir, self.place.address)
        self._tell(study_lines(found, self.place, folders, [*self._remarks([settings]), warm]))
        if self.dry_run:
            return
        with interruptible(), tuning.StudyProgress() as show:
            study = tuning.tune(experiment, final_repetitions=finals, on_event=show, **self._given, **given)
        _report(study, self.tracking_uri)


def _is_zero(text: object) -> bool:
    """True if no test run is asked for: the test data stay closed."""
    return str(text).strip() == "0"


def methods_of(words: Sequence[str] | None) -> list[str]:
    """The methods that were named: "fedavg,fliu", with or without spaces.

    Raises:
        PflOpsError: one is named twice.
    """
    named = [name for name in re.split(r"[,\s]+", " ".join(words or [])) if name]
    twice = [name for name in dict.fromkeys(named) if named.count(name) > 1]
    if twice:
        raise PflOpsError(f"{', '.join(twice)} {'is' if len(twice) == 1 else 'are'} named twice")
    return named


def _write_page(study: "Study") -> None:
    """The study's page, in ./reports/<name>."""
    from pfl_ops.cli.study_page import write_page

    try:
        say(out(), f"report: {write_page(study, REPORTS / study.name)}")
    except Exception as error:  # the study is done, and told
        raise PflOpsError(f"no report of {study.name}: {in_a_line(error)}") from error


def _report(study: "Study", tracking_uri: str | None) -> None:
    """The table of trials, the best configuration, its test, and where to look closer."""
    from pfl_ops.cli.terminal_tables import print_rows, print_scores
    from pfl_ops.display import tables
    from pfl_ops.federation.loop.diverged import Diverged
    from pfl_ops.units import exact, in_words

    console = out()
    front = study.table if study.pareto is None else study.pareto
    title = f"study {study.name}" if study.pareto is None else f"Pareto front of study {study.name}"
    goal = study.objective
    print_rows(console, tables.trials(front, goal.metrics, goal.modes, study.trial, title))
    if study.ended:
        say(console, f"\n{study.ended}")
    if study.confirmation:
        say(console, f"\n{study.confirmation}")
    say(console, f"\nbest: trial {study.trial:03d}, {in_words(study.scores)}")
    say(console, study.front_note, study.tie_note, study.noise)
    say(console, *(f"  {path}={exact(value)}" for path, value in study.best.items()), study.ends_note)
    if study.finals and not study.diverged:
        console.print()
        print_scores(console, study.finals, "test")
        say(console, *study.test_data_notes)
    if study.environments is not None:
        console.print()
        print_rows(console, tables.environments(study.environments))
        say(console, *study.below_environments)
    say(console, *(f"test run with seed {seed}: {how}" for seed, how in study.diverged.items()))
    say(console, str(study.pictures or ""), study.openings_note)
    say(console, "\n" + look_closer(tracking_uri, study.page, "study", study.name))
    _write_page(study)
    if study.diverged or study.environment_notes:
        raise typer.Exit(Diverged.exit_code)
