"""`pfl-ops tune`: a study, from its estimate to its best configuration."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_ops.cli.benchmark import IF_NONE_IS_STOPPED, NONE_IS_STOPPED, REPORTS, experiments_of, run_benchmark
from pfl_ops.cli.checks import check_data_dir, check_work_folder
from pfl_ops.cli.names import completion_of_several, names_of
from pfl_ops.cli.options import (
    EXPERIMENT,
    Config,
    DataDir,
    DryRun,
    Plugins,
    Preset,
    Sets,
    TrackingUri,
    execution_of,
    experiment_of,
    load_plugins,
    option,
    searched_anyway,
    settings_of,
    with_flags,
)
from pfl_ops.cli.output import err, out, say
from pfl_ops.cli.run import look_closer
from pfl_ops.errors import PflOpsError, count, in_a_line
from pfl_ops.files import check_writable

if TYPE_CHECKING:
    from pfl_ops.tuning import Settings, Study

PANEL = "Tuning"
METHODS = typer.Argument(
    metavar="ALGORITHM[,...]",
    show_default=False,
    autocompletion=completion_of_several(names_of("algorithms")),
    help="The method, or several to compare: pfl-ops list algorithms. One may stand in --config instead.",
)


_option = partial(option, panel=PANEL)


@with_flags()
def tune(
    algorithm: Annotated[list[str] | None, METHODS] = None,
    *,
    trials: Annotated[
        int | None,
        _option("--trials", "Configurations to try.", "20; any number with --hours, --samples", "INT", 1, 100_000),
    ] = None,
    hours: Annotated[
        float | None,
        _option("--hours", "Hours of the search; the first budget that is spent ends it.", metavar="FLOAT"),
    ] = None,
    samples: Annotated[
        float | None, _option("--samples", "Gradient samples of all trials, each counted.", metavar="INT")
    ] = None,
    terminate: Annotated[
        int | None, _option("--terminate", "Trials in a row without a better value that end the search.", "0", "INT")
    ] = None,
    seeds_per_trial: Annotated[
        int | None,
        _option("--seeds-per-trial", "Runs of a trial, one a seed; its value is their mean.", "1", "INT"),
    ] = None,
    environments: Annotated[
        str | None,
        _option("--environments", "Environments of each trial: path,ls; the score there by FedAvg's.", metavar="NAMES"),
    ] = None,
    vary: Annotated[
        list[str],
        _option("--vary", "One environment a value, as partition.alpha=0.1,0.5; repeatable.", metavar="PATH=V1,V2"),
    ] = [],  # noqa: B006
    held_out: Annotated[
        str | None, _option("--held-out", "Environments opened once, at the end, like test data.", metavar="NAMES")
    ] = None,
    aggregate: Annotated[
        str | None, _option("--aggregate", "A trial's value over environments.", "mean", "mean|worst")
    ] = None,
    metric: Annotated[
        list[str], _option("--metric", "What to optimise; repeated: a Pareto front.", "the method's, val/L1/acc", "KEY")
    ] = [],  # noqa: B006  (Typer copies it)
    scheduler: Annotated[
        str | None, _option("--scheduler", "Stop bad trials early, or not.", "asha for one metric", "asha|paired|none")
    ] = None,
    search_space: Annotated[
        Path | None, _option("--search-space", "What may vary, as YAML.", "the method's own", "FILE|DIR")
    ] = None,
    cpus_per_trial: Annotated[
        str | None, _option("--cpus-per-trial", "CPUs of a trial; auto: as measured.", "1", "NUMBER|auto")
    ] = None,
    gpus_per_trial: Annotated[
        str | None,
        _option(
            "--gpus-per-trial", "Share of a GPU; 0.25: four trials on each.", "auto if there is one", "NUMBER|auto"
        ),
    ] = None,
    concurrency: Annotated[
        int | None, _option("--concurrency", "Trials at once.", "as many as fit", "INT", 1, 10_000)
    ] = None,
    confirm: Annotated[
        int | None,
        _option("--confirm", "New seeds, at most, to repeat the best configurations with; 0: none.", "3", "INT"),
    ] = None,
    confirm_top: Annotated[int | None, _option("--confirm-top", "Number of these configurations.", "2", "INT")] = None,
    from_study: Annotated[
        str | None,
        _option("--from-study", "An earlier study, whose best configurations are tried first.", metavar="NAME"),
    ] = None,
    name: Annotated[str | None, _option("--name", "The study's name.", "ALGORITHM-DATA-PARTITION-HASH", "NAME")] = None,
    resume: Annotated[bool, _option("--resume/--no-resume", "Go on with a study that was stopped.", "no")] = False,
    storage: Annotated[
        str | None, _option("--storage", "Where the study lies.", "studies.db in the work folder", "URI|FILE.log")
    ] = None,
    address: Annotated[
        str | None, _option("--address", "A Ray cluster to join.", "this machine alone", "auto|HOST:PORT")
    ] = None,
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
    from pfl_ops import runs, tuning
    from pfl_ops.config.precedence import assignments
    from pfl_ops.federation.loop.estimate import duration
    from pfl_ops.tracking.home import check_places
    from pfl_ops.tuning.begin import check
    from pfl_ops.tuning.benchmark import members
    from pfl_ops.tuning.benchmark import settings_of as settings_of_all
    from pfl_ops.tuning.budget import StudyLimits, affordable, budget_text
    from pfl_ops.tuning.environments import names_given, parse_values
    from pfl_ops.tuning.resource_request import ResourceRequest, check_request
    from pfl_ops.tuning.settings import check_environments, check_same_seeds, check_seeds
    from pfl_ops.tuning.study_database import check_storage

    check_places(tracking_uri)
    if storage:
        check_storage(storage)
    check(0, name)
    limits = StudyLimits(trials, hours, samples, terminate, confirm, confirm_top)
    check_seeds(seeds_per_trial)
    named, apart = names_given(environments, "--environments"), names_given(held_out, "--held-out")
    varied = parse_values(vary)
    check_environments(named, varied, apart, aggregate)
    check_data_dir(data_dir)
    methods = methods_of(algorithm)
    if len(methods) > 1 and (named or varied):
        raise PflOpsError(f"environments are for one method, got {', '.join(methods)}; tune one after the other")
    if len(methods) > 1 and from_study:
        raise PflOpsError(f"--from-study is for one method, got {', '.join(methods)}: all methods try the same first")
    asked = ResourceRequest.of(cpus_per_trial, gpus_per_trial, concurrency)
    load_plugins(plugin)
    held = {**settings_of(EXPERIMENT, flags), **assignments(sets)}
    execution = execution_of(flags)
    check_request(asked, execution.device, address)
    repetitions = {path: held.pop(path) for path in ["repetitions"] if path in held}
    closed = str(repetitions.get("repetitions", "")).strip() == "0"  # of `tune` alone: the test data stay closed
    if closed:
        flags = {flag: text for flag, text in flags.items() if flag != "repetitions"}
        sets = [text for text in sets if text.partition("=")[0].strip() != "repetitions"]
    said = bool(held or config or preset or metric or scheduler or search_space or named or varied)
    by_name = resume and name and not said  # as it was begun: what the message of Ctrl-C tells people to type
    if by_name:
        check_work_folder(storage)
    begun = members(str(name), storage=storage) if by_name and len(methods) != 1 else {}
    chosen: dict[str, Any] = {
        "metric": metric or None,
        "scheduler": scheduler,
        "hold": held,
        "seeds_per_trial": seeds_per_trial,
    }
    given: dict[str, Any] = {
        **asdict(limits),
        **chosen,
        "space": search_space,
        "cpus_per_trial": asked.cpus,
        "gpus_per_trial": asked.gpus,
        "concurrency": concurrency,
        "storage": storage,
        "name": name,
        "resume": resume,
        "address": address,
        "tracking_uri": tracking_uri,
        "data_dir": data_dir,
    }
    if len(methods) > 1 or begun:
        if begun and methods and set(methods) != set(begun):
            raise PflOpsError(f"benchmark '{name}' compares {', '.join(begun)}, not {', '.join(methods)}")
        found = None
        if not begun:
            found = experiments_of(methods, flags, config=config, preset=preset, sets=sets, data_dir=data_dir)
            begun = settings_of_all(found, search_space, limits, **chosen)
        for member in begun.values():
            check_same_seeds(seeds_per_trial, str(name), member.seeds_per_trial)
        begun = {method: each.limited(limits) for method, each in begun.items()}
        if closed:
            finals = 0
        else:
            finals = found[0].repetitions if found else _tests_wanted(next(iter(begun.values())), repetitions)
        anyway = searched_anyway(begun.values(), config=config, preset=preset)
        run_benchmark(found, begun, finals=finals, execution=execution, dry_run=dry_run, given=given, anyway=anyway)
        return
    tuned_alone = methods[0] if methods else None
    experiment = None
    warm = ""
    if by_name:
        if from_study:
            raise PflOpsError("--from-study is for a new study; this one keeps the configurations that it tried first")
        settings = tuning.recorded(str(name), storage=storage).limited(limits)
        check_same_seeds(seeds_per_trial, str(name), settings.seeds_per_trial)
        tuned = settings.experiment.algorithm.name
        if tuned_alone not in (None, tuned):
            raise PflOpsError(f"study '{name}' tunes {tuned}, not {tuned_alone}")
        finals = 0 if closed else _tests_wanted(settings, repetitions)
    else:
        experiment = experiment_of(tuned_alone, flags, config=config, preset=preset, sets=sets, data_dir=data_dir)
        several: dict[str, Any] = {
            "environments": named,
            "vary": varied or None,
            "held_out": apart,
            "aggregate": aggregate,
        }
        settings = tuning.Settings.of(experiment, search_space, limits, **chosen, **several)
        finals = 0 if closed else experiment.repetitions
        if from_study:
            check_work_folder(storage)
            taken = tuning.started_from(settings, from_study, storage=storage)
            settings, warm = taken.first_in(settings), str(taken)
            given["from_study"] = from_study
        given |= several

    wanted = settings.trials
    estimate = runs.estimate(settings.example, data_dir=data_dir, execution=asked.estimated(execution))
    top = min(settings.confirm_top, wanted)
    n_environments = max(1, len(settings.environments))
    more = f"then the best {top} again with up to {count(settings.confirm, 'new seed')} (--confirm)" if top > 1 else ""
    more *= settings.confirm > 0
    budget = budget_text(settings)
    runs_of_trial = settings.n_parts
    whole_trial = estimate.of_runs(runs_of_trial)
    each = f"each {estimate}{', ' * bool(estimate.cost)}{estimate.cost}"
    if settings.combination:
        each = f"a trial is {settings.combination}{NONE_IS_STOPPED * (settings.scheduler == 'none')}; {each}"
    if address or asked.kind(execution.device, address):  # how many fit is known once it is joined, or measured
        text = f"{budget}, {each}"
    else:
        at_once = asked.at_once(wanted * settings.at_once)
        trials_within = affordable(settings, whole_trial, at_once)
        baselines = runs_of_trial if settings.environments else 0
        whole = duration(estimate.with_startup().of_trials(trials_within * runs_of_trial + baselines, at_once))
        fit = f" ({trials_within} fit)" if trials_within < wanted else ""
        if_all = IF_NONE_IS_STOPPED * (settings.scheduler != "none" or not settings.combination)
        text = f"{budget}{fit}, {at_once} at once, about {whole}{if_all}; {each}"
        longest = duration(estimate.with_startup().of_trials(top * settings.confirm * n_environments, at_once))
        more += f", at most {longest}" if more else ""
    anyway = searched_anyway([settings], config=config, preset=preset)
    before = (text, anyway, settings.cohort_note, warm, more, _tests_told(settings, finals))
    for told in filter(None, (*before, *estimate.hints)):
        say(out() if dry_run else err(), told)
    if dry_run:
        return
    check_writable(REPORTS, "the folder of the report", "run this in another folder")
    try:
        with tuning.StudyProgress() as show:
            study = tuning.tune(experiment, execution=execution, final_repetitions=finals, on_event=show, **given)
    except tuning.StudyInterrupted as stopped:
        say(err(), str(stopped))
        raise typer.Exit(130) from None
    _report(study, tracking_uri)


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


def _tests_wanted(settings: "Settings", given: Mapping[str, Any]) -> int:
    """Return the number of test runs of a study that goes on; `given`: by a flag or --set, else as in the last call."""
    return settings.experiment.override(given).repetitions if given else settings.finals


def _tests_told(settings: "Settings", finals: int) -> str:
    """Return the line on FedAvg's runs and the tests of a study in environments; "": it has none."""
    if not settings.environments:
        return ""
    tests = 2 * finals * (len(settings.environments) + len(settings.held_out))
    apart = f"; held out: {', '.join(one.name for one in settings.held_out)}" if settings.held_out else ""
    first = count(settings.n_parts, "run")
    return f"before it {first} of FedAvg, at the end {tests} tests: the choice and FedAvg{apart}"


def _write_page(study: "Study") -> None:
    """The study's page, in ./reports/<name>."""
    from pfl_ops.cli.study_page import write_page

    try:
        say(out(), f"report: {write_page(study, REPORTS / study.name)}")
    except Exception as error:  # the study is done, and told
        raise PflOpsError(f"no report of {study.name}: {in_a_line(error)}") from error


def _report(study: "Study", tracking_uri: str | None) -> None:
    """The table of trials, the best configuration, its test, and where to look closer."""
    from pfl_ops.cli.live import drawn, print_scores
    from pfl_ops.display import tables
    from pfl_ops.federation.loop.diverged import Diverged
    from pfl_ops.units import exact, in_words

    console = out()
    front = study.table if study.pareto is None else study.pareto
    title = f"study {study.name}" if study.pareto is None else f"Pareto front of study {study.name}"
    goal = study.objective
    console.print(drawn(tables.trials(front, goal.metrics, goal.modes, study.trial, title)))
    if study.ended:
        say(console, f"\n{study.ended}")
    if study.confirmation:
        say(console, f"\n{study.confirmation}")
    say(console, f"\nbest: trial {study.trial:03d}, {in_words(study.scores)}")
    for note in filter(None, (study.front_note, study.noise)):
        say(console, note)
    for path, value in study.best.items():
        say(console, f"  {path}={exact(value)}")
    if study.ends_note:
        say(console, study.ends_note)
    if study.finals and not study.diverged:
        console.print()
        print_scores(console, study.finals, "test")
        if study.copies_note:
            say(console, study.copies_note)
    if study.environments is not None:
        console.print()
        console.print(drawn(tables.environments(study.environments)))
        for note in (study.baseline_note, *study.environment_notes):
            say(console, note)
    for seed, how in study.diverged.items():
        say(console, f"test run with seed {seed}: {how}")
    if study.pictures and (skipped := str(study.pictures)):
        say(console, skipped)
    if study.openings:
        say(console, f"the test data were opened {count(study.openings, 'time')} for this study")
    say(console, "\n" + look_closer(tracking_uri, study.page, "study", study.name))
    _write_page(study)
    if study.diverged or study.environment_notes:
        raise typer.Exit(Diverged.exit_code)
