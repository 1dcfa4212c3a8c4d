"""`tune`: a study from its settings to its tested best configuration."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from pfl_ops import tag_names
from pfl_ops.config.arguments import checked
from pfl_ops.config.experiment import Experiment
from pfl_ops.csv_text import to_csv
from pfl_ops.display import live
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.resources import joining
from pfl_ops.redaction import redact
from pfl_ops.registry import load_plugin
from pfl_ops.spaces import Space, at_ends, in_unit_of
from pfl_ops.tracking import Run, Store, provenance
from pfl_ops.tracking.provenance import described
from pfl_ops.tracking.runs.finished import choice_tag
from pfl_ops.tuning.commands.planning import check_environments_build, check_nothing_new, study_name
from pfl_ops.tuning.commands.warm_start import WarmStart, warm_start
from pfl_ops.tuning.findings import leaderboard, presented
from pfl_ops.tuning.findings.pictures import Pictures
from pfl_ops.tuning.findings.show import StudyProgress
from pfl_ops.tuning.findings.study import Study, picture
from pfl_ops.tuning.resources.resource_request import Amount, ResourceRequest
from pfl_ops.tuning.session.baselines import scales_of
from pfl_ops.tuning.session.begin import RUN, PreparedStudy, StudyOptions, check, existing, readable, recorded_settings
from pfl_ops.tuning.session.events import OnEvent
from pfl_ops.tuning.session.reconcile import reconcile
from pfl_ops.tuning.session.session import Session, StudyInterrupted
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies.budget import ending
from pfl_ops.tuning.studies.environments import check_environments, check_tests_apart, names_given
from pfl_ops.tuning.studies.limits import StudyLimits, trials_done
from pfl_ops.tuning.studies.parts import check_same_seeds, check_seeds
from pfl_ops.tuning.studies.settings import Settings, check_top
from pfl_ops.tuning.studies.study_storage import SCORES, STANDARD_ERRORS, StudyStorage, point_of
from pfl_ops.tuning.studies.tested import copies_notes, summary

log = logging.getLogger("pfl_ops.tuning")


@checked
@joining
def tune(
    experiment: Experiment | None = None,
    *,
    space: Space | str | Path | None = None,
    trials: int | None = None,
    hours: float | None = None,
    samples: float | None = None,
    terminate: int | None = None,
    seeds_per_trial: int | None = None,
    environments: str | Sequence[str] = (),
    vary: Mapping[str, Sequence[Any]] | None = None,
    held_out: str | Sequence[str] = (),
    aggregate: str | None = None,
    metric: str | Sequence[str] | None = None,
    mode: str | Sequence[str] | None = None,
    scheduler: str | None = None,
    cpus_per_trial: Amount = None,
    gpus_per_trial: Amount = None,
    concurrency: int | None = None,
    storage: str | None = None,
    name: str | None = None,
    resume: bool = False,
    address: str | None = None,
    home: str | Path | None = None,
    tracking_uri: str | None = None,
    data_dir: str | None = None,
    execution: Execution | None = None,
    final_repetitions: int | None = None,
    confirm: int | None = None,
    confirm_top: int | None = None,
    hold: Collection[str] = (),
    from_study: str | None = None,
    plugins: Iterable[Path | str] = (),
    on_event: OnEvent | None = None,
    progress: bool | None = None,
) -> Study:
    """Tune an experiment: trials on validation data, then the chosen configuration on test data.

    Each trial is one repetition of the experiment (more with `seeds_per_trial`), trained without each client's
    validation share and scored on it; it never sees test data. The best configurations are run again in the same way
    with seeds that no trial has seen, and the one with the best mean is chosen, see `confirm`. The chosen configuration
    is then trained on training and validation data together, with the seeds seed, seed + 1, ..., and scored on the test
    data.

    Args:
        experiment: what to tune; none: that of the study `name`, which is resumed.
        space: what to vary; a space, its file or folder; none: the one for the method (`spaces.read`).
        trials: in all, those of a resumed study included; none: 20, or as recorded; without limit if `hours` or
            `samples` is given.
        hours: wall time of the search, over all calls; none: no limit, or as recorded. The search ends when the first
            budget is spent: trials that run then end as usual, and no new one starts.
        samples: gradient samples of all trials, each counted; likewise.
        terminate: end the search when so many trials in a row, complete or stopped early, have not improved the best
            value; none: 0, never, or as recorded.
        seeds_per_trial: runs of each trial, with the seeds seed, seed + 1, ..., the same for all; its value is their
            mean; none is stopped early, unless `scheduler` is "paired". At most 1,000, since the new seeds of `confirm`
            start at seed + 1000. None: 1, or as recorded.
        environments: names of environments in which each trial is run with each seed: a partition ("path"), a data set
            ("mnist"), a setting ("participation.share=0.5"), or several joined by "+"; as a sequence, or as text with
            commas. Each score is divided by that of FedAvg with its default settings there; see `aggregate`. None is
            stopped early.
        vary: path -> values: environments with every combination of these; with `environments` in each of them.
        held_out: names of environments in which the choice and FedAvg are tested at the end, and nothing else is run.
        aggregate: a trial's value over environments: "mean" (the default) of the divided scores, or that of the
            "worst" environment.
        metric: one tracked key to optimise, or several (no early stopping, a Pareto front); none: val/L1/acc of the
            last round, or that of the stage in which the method has clients' own models (`Algorithm.own_stage`).
        mode: "max" or "min", for all metrics or for each; none: what is better for that key.
        scheduler: "asha" stops bad trials of a single objective early, at rounds that are multiples of
            evaluation.global_every (the default for one metric); "paired" stops trials of several runs between two of
            them (see `paired`); "none" runs all to the end.
        cpus_per_trial, gpus_per_trial, concurrency: see `ResourceRequest`. None: one CPU, and if this machine has a GPU
            the share of it that is measured to be the best, with as large a share of the cores. A resumed
            study keeps what was measured for it.
        storage: of the study, see `study_database.storage`; none: studies.db in the work folder.
        name: of the study; none: <algorithm>-<dataset>-<partition>-<hash>.
        resume: go on with a study that exists. One that has all its trials is read without this.
        address: of a Ray cluster to join; none: this machine. There, each machine reads the data from its own
            PFL_OPS_DATA, and the work folder must be shared if trials are to continue on another machine.
        home, tracking_uri: work folder, MLflow's address.
        data_dir: where the data lie.
        execution: where and how trials and test runs compute; a trial's device and threads follow its share.
        final_repetitions: test runs of the chosen configuration; 0: the test data stay closed. None: the experiment's
            `repetitions`, or as in the last call if `experiment` is none.
        confirm: new seeds, at most, with which the best configurations are run again on validation data; fewer if the
            best one is separated before. 0: the trial with the best value is chosen. None: 3, or as recorded; several
            objectives are not confirmed.
        confirm_top: number of these configurations. None: 2, or as recorded.
        hold: paths of the space that are not varied but keep the experiment's value.
        from_study: an earlier study, of any method, data set or partition; its choice and its best configurations are
            tried first, as far as `space` allows their values. Which ones, is said when the study begins.
        plugins: Python files that define methods, networks or partitions; those already loaded count too.
        on_event: told of everything that happens; `show.StudyProgress` draws it.
        progress: show the trials in a live table; None: in a notebook and in a terminal, unless `on_event` is given.
            True: also elsewhere, as lines on standard error.
    Raises:
        PflOpsError: settings that can't work, before the first trial; or no trial has a result.
        StudyInterrupted: Ctrl-C; the message says how to go on.

    >>> study = tune(experiment, space=space, trials=2, name="example", final_repetitions=0)
    >>> study
    Study(example: trial 001 of 2, Acc(L)+Acc(G) 75.0 %)
    >>> study.best
    {'algorithm.x': 0.75}
    """
    for file in plugins:
        load_plugin(Path(file))
    check(final_repetitions, name)
    limits = StudyLimits(trials, hours, samples, terminate, confirm, confirm_top)
    check_seeds(seeds_per_trial)
    environments = names_given(environments, "environments")
    held_out = names_given(held_out, "held_out")
    check_environments(environments, vary, held_out, aggregate)
    asked = ResourceRequest.of(cpus_per_trial, gpus_per_trial, concurrency)
    options = StudyOptions.of(home, storage, data_dir, asked, execution, address, on_event)
    warm: WarmStart | None = None
    if experiment is not None:
        settings = Settings.of(
            in_unit_of(space, experiment, hold) if isinstance(space, Space) else experiment,
            space,
            limits,
            metric,
            mode,
            scheduler,
            hold,
            seeds_per_trial=seeds_per_trial,
            environments=environments,
            vary=vary,
            held_out=held_out,
            aggregate=aggregate,
        )
        check_tests_apart(settings.experiment, (*settings.environments, *settings.held_out))
        finals = experiment.repetitions
        if from_study is not None:
            warm = warm_start(existing(from_study, options.studies), settings)
            settings = warm.first_in(settings)
    elif from_study is not None:
        raise PflOpsError("a study keeps the configurations that it tried first: give an experiment with from_study")
    elif environments or vary:
        raise PflOpsError("a study keeps the environments that it was begun with: give an experiment with them")
    elif name and resume:
        check_nothing_new("study", space=space, metric=metric, mode=mode, scheduler=scheduler, hold=hold)
        settings = recorded_settings(name, options.studies).limited(limits)
        check_same_seeds(seeds_per_trial, name, settings.seeds_per_trial)
        experiment, finals = settings.experiment, settings.finals
    else:
        raise PflOpsError("give an experiment, or the name of a study and resume")
    name = name or study_name(settings, experiment, options.data_dir)
    check_environments_build(settings, options.data_dir, options.execution)
    plan = PreparedStudy(experiment, settings, name, finals if final_repetitions is None else final_repetitions)

    with study_database.lock(options.home.root, name), live.watching(StudyProgress, on_event, progress) as tell:
        options = replace(options, on_event=tell)
        begun = plan.found(options.studies, options.data_dir, resume)
        check_top(limits, (plan if begun is None else plan.limited(begun, limits)).settings)
        study_storage = plan.begin(options, resume)
        if warm is not None:
            study_storage.remember(from_study=str(warm))
        plan = plan.wanting(study_storage, limits)
        options.wait(name, plan.settings.trials, "opening MLflow's store ...")
        with Store.open(home, tracking_uri, offline=True) as tracking:
            try:
                return conduct(plan, study_storage, options, tracking)
            except StudyInterrupted:
                done = f"stopped with {trials_done(study_storage.done(), plan.settings.trials)} done; go on with: "
                command = f"pfl-ops tune {plan.method} --name {name}{options.repeated(plan.finals)} --resume"
                raise StudyInterrupted(done + command) from None


def conduct(
    plan: PreparedStudy, study_storage: StudyStorage, options: StudyOptions, tracking: Store, below: Run | None = None
) -> Study:
    """Run the trials that are missing, the confirmation, the choice, its test; tracked as a run of its own.

    Args:
        below: the run that the study's belongs to, in whose MLflow experiment all of it is tracked; none: the study has
            an experiment of its own.
    Raises:
        StudyInterrupted: Ctrl-C. PflOpsError: no trial has a result.
    """
    settings = plan.settings
    with _parent(tracking, plan, study_storage, options, below) as parent:
        session = Session(
            settings,
            study_storage,
            tracking,
            parent,
            data_dir=options.data_dir,
            execution=options.execution,
            address=options.address,
            on_event=options.on_event,
            asked=options.asked,
            decide=lambda session: _decide(session, plan.experiment, plan.finals),
            prefix=f"{plan.method} " if below else "",
            view=presented.trials_view(plan.method, bool(below)),
        )
        try:
            reconcile(session)
            session.run()
            study = _result(session, plan.experiment)
            if below:
                for numbers in leaderboard.points(leaderboard.MethodStudy(plan, study_storage, study)):
                    parent.set_metrics(numbers.round, numbers.metrics)
            if study.confirmation:
                parent.text(to_csv(study.confirmation.table), "confirmation.csv")
                parent.tags({"pfl_ops.confirmation": str(study.confirmation)})
            elif study_storage.confirmations():  # of an earlier call
                parent.tags({"pfl_ops.confirmation": "none: the trial with the best value is chosen"})
            _keep_pictures(parent, study)
            for name in ("environments", "tests", "parts", "baselines"):
                if (rows := getattr(study, name)) is not None:
                    parent.text(to_csv(rows), f"{name}.csv")
            parent.tags(_remarks(study, earlier=not study_storage.new))
            presented.end(parent, study, session.view)
            return study
        except (KeyboardInterrupt, StudyInterrupted):
            parent.finish("KILLED", patience=5)
            raise StudyInterrupted from None
        except Exception as error:
            with suppress(OSError):  # what ended the study may end this too: a full disk
                parent.tags({tag_names.ERROR: redact(" ".join(str(error).split()))[:500]})
            raise


def recorded(name: str, *, home: str | Path | None = None, storage: str | None = None) -> Settings:
    """The settings of a study that exists: what `tune --name NAME --resume` goes on with."""
    return recorded_settings(name, readable(storage, home))


def started_from(settings: Settings, name: str, *, storage: str | None = None) -> WarmStart:
    """Return the configurations that `tune(from_study=name)` tries first in a study with these settings."""
    return warm_start(existing(name, readable(storage)), settings)


def _parent(
    store: Store, plan: PreparedStudy, study_storage: StudyStorage, options: StudyOptions, below: Run | None
) -> Run:
    """The study's own run; a new one for another search of that name, whose study storage was deleted, say."""
    experiment, digest = plan.settings.experiment, study_storage.settings["digest"]
    tags = {tag_names.STUDY: plan.name} | ({tag_names.BENCHMARK: plan.benchmark} if below else {})
    if "from_study" in study_storage.settings:
        tags["pfl_ops.from_study"] = study_storage.settings["from_study"]
    tags |= _described(plan.settings)
    place, identity = below.experiment if below else plan.name, f"study:{digest}:{plan.name}"
    if study_storage.new and store.reachable and store.find(identity, experiment=place, parent=below):
        log.warning(
            "MLflow has study '%s' of another search, which is not in this study storage: this search is a new run, "
            "and supersedes the other one when it is finished",
            plan.name,
        )
    run = store.run(
        place,
        plan.method if below else "study",
        identity=identity,
        rerun=study_storage.settings.get(RUN, ""),
        params={**plan.settings.same_in_all, "tuning.metric": ", ".join(plan.settings.objective.metrics)},
        tags=provenance(group=experiment.digest(options.data_dir, seed=False)) | tags,
        parent=below,
    )
    run.yaml(plan.settings.as_dict(), "study.yaml")
    presented.begin(run, plan, bool(below))
    return run


def _described(settings: Settings) -> dict[str, str]:
    """Return the tags by which studies are grouped: of several environments, the values of all that trials run in."""
    each = [described(experiment, "study") for experiment in settings.in_environments]
    return {tag: ", ".join(dict.fromkeys(one[tag] for one in each)) for tag in each[0]}


def _decide(session: Session, experiment: Experiment, repetitions: int) -> list[Experiment]:
    """Choose, keep the choice and its tables in the study's run, and return the experiments of its test runs.

    Raises:
        PflOpsError: no trial has a result.
    """
    study_storage, parent, goal = session.study_storage, session.parent, session.settings.goal
    best = study_storage.chosen()
    table = study_storage.table(goal.metrics)
    if len(table):
        parent.table(table, "trials.parquet")
        parent.text(to_csv(table), "trials.csv")
        if drawn := picture(table, goal, best[0] if best else None):
            parent.figure(drawn[1], drawn[0])
    if best is None and not len(table) and (ended := ending(session.settings, study_storage)):
        raise PflOpsError(
            f"no trial of study '{study_storage.name}' was begun, since FedAvg's runs in the environments count: "
            f"{ended}; go on with a larger budget and --resume"
        )
    if best is None:
        errors = [error for error in table["error"] if error] if len(table) else []
        last = f"; the last one: {errors[-1]}" if errors else ""
        raise PflOpsError(
            f"no trial of study '{study_storage.name}' was completed ({len(errors)} without a result{last})"
        )
    number, trial = best
    chosen = session.chosen(experiment)
    values = dict(zip(goal.metrics, map(float, trial.values or ()), strict=True))
    parent.text(chosen.to_yaml(), "best.yaml")
    parent.tags({"pfl_ops.best_trial": f"trial-{number:03d}"} | {f"best.{key}": value for key, value in values.items()})
    runs = [session.children.trial(number, point_of(trial), part) for part in range(session.settings.n_parts)]
    parent.choose(*(run.identity for run in runs))
    if not goal.single:
        parent.table(_front(study_storage, table), "pareto.parquet")
    tests = session.open_tests(chosen, repetitions)
    parent.tags({tag_names.CHOICE: choice_tag(one.digest(session.data_dir, seed=False) for one in tests or [chosen])})
    return tests


def _result(session: Session, experiment: Experiment) -> Study:
    """Return the result of a study that was decided and tested."""
    study_storage, parent, goal = session.study_storage, session.parent, session.settings.goal
    best, table = study_storage.chosen(), study_storage.table(goal.metrics)
    assert best is not None
    number, trial = best
    point, chosen = point_of(trial), session.chosen(experiment)
    tracked = session.settings.objective.metrics
    environments = None
    if session.tested is not None:
        scores = trial.user_attrs.get(SCORES, {})
        environments = summary(session.settings, scales_of(session), scores, session.tested)
    return Study(
        name=study_storage.name,
        run_id=parent.run_id,
        objective=goal,
        best=point,
        trial=number,
        values=dict(zip(goal.metrics, map(float, trial.values or ()), strict=True)),
        experiment=chosen,
        table=table,
        pareto=None if goal.single else _front(study_storage, table),
        finals=session.finals,
        openings=len(study_storage.openings()),
        page=parent.page(session.view),
        diverged=session.diverged,
        confirmation=session.confirmation,
        ended=ending(session.settings, study_storage),
        pictures=Pictures(study_storage, session.settings.experiment, goal),
        standard_errors=dict(trial.user_attrs.get(STANDARD_ERRORS, {})),
        environments=environments,
        tests=session.tested,
        in_environments=() if environments is None else tuple(session.settings.in_environments),
        parts=study_storage.parts_table(tracked) if session.settings.combination else None,
        baselines=None if environments is None else study_storage.baselines_table(tracked),
        ends=at_ends(session.settings.space, chosen, point),
        copies=copies_notes(session.planned, session.data_dir),
    )


def _keep_pictures(parent: Run, study: Study) -> None:
    """Keep the pictures of a study in its run, and the importance of its parameters as a table."""
    pictures = study.pictures
    assert pictures is not None
    for name, figure in pictures.each():
        parent.figure(figure, name)
    if len(importance := pictures.importance):
        parent.text(to_csv(importance), "importance.csv")


def _remarks(study: Study, earlier: bool) -> dict[str, str]:
    """Return the lines on a result, as tags of the study's run.

    Args:
        earlier: True if a call before this one may have left other lines; then a line that there is none of is "".
    """
    lines = {
        "pfl_ops.noise": study.noise,
        "pfl_ops.ended": study.ended,
        "pfl_ops.pictures": str(study.pictures or "")[:500],
        tag_names.ERROR: "",
    }
    return {tag: text for tag, text in lines.items() if text or earlier}


def _front(study_storage: StudyStorage, table: pd.DataFrame) -> pd.DataFrame:
    """The Pareto front of several objectives, as rows of the table."""
    return table[table["trial"].isin([number for number, _ in study_storage.best()])].reset_index(drop=True)
