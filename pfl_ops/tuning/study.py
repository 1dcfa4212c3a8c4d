"""`tune`: a study from its settings to its tested best configuration."""

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from optuna.storages import BaseStorage

from pfl_ops.errors import PflOpsError
from pfl_ops.experiment import Experiment
from pfl_ops.federation.settings import Execution
from pfl_ops.registry import load_plugin, plugins
from pfl_ops.spaces import Point, Space
from pfl_ops.tracking import Home, Run, Store, provenance
from pfl_ops.tuning import ledger as ledgers
from pfl_ops.tuning.asked import Amount, Asked
from pfl_ops.tuning.driver import OnEvent
from pfl_ops.tuning.ledger import Ledger
from pfl_ops.tuning.objective import Objective
from pfl_ops.tuning.resources import check_gpus
from pfl_ops.tuning.session import Final, Session, StudyInterrupted, run_final
from pfl_ops.tuning.settings import Settings
from pfl_ops.tuning.trial import Records, simulate

if TYPE_CHECKING:
    from pfl_ops.runs import Result


@dataclass(frozen=True)
class Study:
    """How a study ended.

    Attributes:
        name: its name, in the storage and in MLflow. run_id: of its parent run.
        objective: what was optimised.
        best: the chosen point. trial: its number. values: its objective on validation data.
        experiment: the chosen configuration, as its test runs have it.
        table: one row a trial. pareto: the front of several objectives, as rows of the table; None: there was one.
        finals: test runs of the chosen configuration, one a repetition.
        openings: how often the test data were opened for this study.
    """

    name: str
    run_id: str | None
    objective: Objective
    best: Point
    trial: int
    values: dict[str, float]
    experiment: Experiment
    table: pd.DataFrame
    pareto: pd.DataFrame | None = None
    finals: "list[Result]" = field(default_factory=list)
    openings: int = 0


def tune(
    experiment: Experiment | None = None,
    *,
    space: Space | str | Path | None = None,
    trials: int | None = None,
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
    final_repetitions: int = 1,
    hold: Collection[str] = (),
    plugins: Iterable[Path | str] = (),
    on_event: OnEvent | None = None,
    records: Records = simulate,
    final: Final = run_final,
) -> Study:
    """Tune an experiment: trials on validation data, then the chosen configuration on test data.

    Each trial is one repetition of the experiment, trained without each client's validation share and scored on it; it
    never sees test data. The chosen configuration is then trained on training and validation data together, with the
    seeds seed, seed + 1, ..., and scored on the test data.

    Args:
        experiment: what to tune; none: that of the study `name`, which is resumed.
        space: what to vary; a space, its file or folder; none: the one for the method (`spaces.read`).
        trials: in all, those of a resumed study included; none: 12, or as recorded.
        metric: one tracked key to optimise, or several (no early stopping, a Pareto front); none: val/L1/acc of the
            last round, or that of the stage in which the method has clients' own models (`Algorithm.own_stage`).
        mode: "max" or "min", for all metrics or for each; none: what is better for that key.
        scheduler: "asha" stops bad trials of a single objective early, at rounds that are multiples of
            evaluation.global_every (the default for one metric); "none" runs all to the end.
        cpus_per_trial, gpus_per_trial, concurrency: see `asked.Asked`. None: one CPU, and where this machine has a GPU
            the share of it that is measured to be the best. A resumed study keeps what was measured for it.
        storage: of the study, see `ledger.storage`; none: studies.db in the work folder.
        name: of the study; none: <algorithm>-<dataset>-<partition>-<hash>.
        resume: go on with a study that exists. One that has all its trials is read without this.
        address: of a Ray cluster to join; none: this machine. There, each machine reads the data from its own
            PFL_OPS_DATA, and the work folder must be shared if trials are to continue on another machine.
        home, tracking_uri: work folder, MLflow's address.
        data_dir: where the data lie.
        execution: where and how trials and test runs compute; a trial's device and threads follow its share.
        final_repetitions: test runs of the chosen configuration; 0: the test data stay closed.
        hold: paths of the space that are not varied but keep the experiment's value.
        plugins: Python files that define methods, networks or partitions; those already loaded count too.
        on_event: told of everything that happens; `show.Show` draws it.
        records, final: what a trial and a test run are; replaced in tests.
    Raises:
        PflOpsError: settings that can't work, before the first trial; or no trial has a result.
        StudyInterrupted: Ctrl-C; the message says how to go on.
    """
    for file in plugins:
        load_plugin(Path(file))
    if final_repetitions < 0 or (trials is not None and trials < 1):
        raise PflOpsError(f"trials must be >= 1 and final repetitions >= 0, got {trials} and {final_repetitions}")
    if name is not None and not re.fullmatch(r"[\w.-]+", name):
        raise PflOpsError(f"a study's name is made of letters, digits, '.', '_' and '-', got '{name}'")
    place = Home.open(home)
    data_dir = _absolute(data_dir or (None if address else os.environ.get("PFL_OPS_DATA")))
    asked = Asked.of(cpus_per_trial, gpus_per_trial, concurrency)
    check_gpus(asked.gpus, address)
    store = _storage(storage, place)
    if experiment is not None:
        settings = Settings.of(experiment, space, trials, metric, mode, scheduler, hold)
    elif name and resume:
        settings = Settings.from_dict(Ledger(name, store).settings)
        experiment = settings.experiment
    else:
        raise PflOpsError("give an experiment, or the name of a study and resume")
    digest = settings.digest(data_dir)
    name = name or f"{experiment.label}-{digest[:8]}"

    with ledgers.lock(place.root, name):
        ledger = _open(name, store, settings, digest, resume)
        settings = settings.wanting(ledger.settings["trials"] if trials is None else trials)
        ledger.remember(trials=settings.trials)
        missing = settings.trials - ledger.done()
        with Store.open(home, tracking_uri) as tracking, _parent(tracking, name, settings, digest, data_dir) as parent:
            session = Session(
                settings,
                ledger,
                tracking,
                parent,
                data_dir,
                execution or Execution(),
                address,
                on_event,
                records,
                final,
                asked,
            )
            try:
                if missing > 0:
                    session.run_trials(missing)
                return _result(session, experiment, final_repetitions)
            except (KeyboardInterrupt, StudyInterrupted):
                parent.finish("KILLED", patience=5)
                raise StudyInterrupted(_go_on(ledger, settings, experiment, storage)) from None


def recorded(name: str, *, home: str | Path | None = None, storage: str | None = None) -> Settings:
    """The settings of a study that exists: what `tune --name NAME --resume` goes on with."""
    return Settings.from_dict(Ledger(name, _storage(storage, Home.open(home))).settings)


def _storage(address: str | None, place: Home) -> BaseStorage:
    return ledgers.storage(address or f"sqlite:///{place.studies}")


def _absolute(folders: str | None) -> str | None:
    """The data folders as other processes find them."""
    if not folders:
        return None
    return os.pathsep.join(str(Path(folder).expanduser().absolute()) for folder in folders.split(os.pathsep) if folder)


def _open(name: str, store: BaseStorage, settings: Settings, digest: str, resume: bool) -> Ledger:
    """The study: a new one with its first points queued, or one that may be gone on with."""
    ledger = Ledger(name, store, None if resume else settings.objective, {**settings.as_dict(), "digest": digest})
    if ledger.new:
        ledger.enqueue(settings.space.first)
        return ledger
    if ledger.settings["digest"] != digest:
        differs = settings.difference(Settings.from_dict(ledger.settings))
        raise PflOpsError(f"study '{name}' was begun with other settings (now {differs}); choose another --name")
    done, wanted = ledger.done(), settings.trials
    if done < wanted and ledger.begun() and not resume:
        raise PflOpsError(
            f"study '{name}' exists, {done} of {wanted} trials have a result; go on with --resume, "
            "or choose another --name"
        )
    return ledger


def _parent(store: Store, name: str, settings: Settings, digest: str, data_dir: str | None) -> Run:
    """The study's own run."""
    experiment = settings.experiment
    run = store.run(
        name,
        "study",
        identity=f"study:{digest}:{name}",
        params={**experiment.flat, "tuning.metric": ", ".join(settings.objective.metrics)},
        tags=provenance(group=experiment.digest(data_dir, seed=False)) | {"pfl_ops.study": name},
    )
    run.yaml(settings.as_dict(), "study.yaml")
    return run


def _result(session: Session, experiment: Experiment, repetitions: int) -> Study:
    """The choice, its tables in the study's run, and its test."""
    ledger, parent, goal = session.ledger, session.parent, session.settings.objective
    best = ledger.chosen()
    table = ledger.table(goal.metrics)
    if len(table):
        parent.table(table, "trials.parquet")
        parent.text(table.to_csv(index=False), "trials.csv")
        _draw(parent, table, goal, best[0] if best else None)
    if best is None:
        errors = [error for error in table["error"] if error] if len(table) else []
        last = f"; the last one: {errors[-1]}" if errors else ""
        raise PflOpsError(f"no trial of study '{ledger.name}' was completed ({len(errors)} failed{last})")
    number, trial = best
    chosen = session.chosen(experiment)
    values = dict(zip(goal.metrics, map(float, trial.values or ()), strict=True))
    parent.text(chosen.to_yaml(), "best.yaml")
    parent.tags({"pfl_ops.best_trial": f"trial-{number:03d}"} | {f"best.{key}": value for key, value in values.items()})
    pareto = None
    if not goal.single:
        front = [n for n, _ in ledger.best()]
        pareto = table[table["trial"].isin(front)].reset_index(drop=True)
        parent.table(pareto, "pareto.parquet")
    openings = session.run_finals(chosen, repetitions)
    return Study(
        ledger.name,
        parent.run_id,
        goal,
        dict(trial.params),
        number,
        values,
        chosen,
        table,
        pareto,
        session.finals,
        openings,
    )


def _draw(parent: Run, table: pd.DataFrame, goal: Objective, chosen: int | None) -> None:
    """The trials one by one; with two objectives their front."""
    from pfl_ops import figures

    if goal.single:
        values, states = table[goal.metrics[0]].tolist(), table["state"].tolist()
        parent.figure(figures.history(values, states, goal.metrics[0], goal.modes[0] == "max"), "trials")
    elif len(goal.metrics) == 2 and set(goal.modes) == {"max"}:
        trials = table["trial"].tolist()
        row = trials.index(chosen) if chosen in trials else None
        first, second = goal.metrics
        front = figures.pareto(table[[first, second]].to_numpy(float), list(map(str, trials)), (first, second), row)
        parent.figure(front, "pareto")


def _go_on(ledger: Ledger, settings: Settings, experiment: Experiment, storage: str | None) -> str:
    where = f" --storage {ledgers.hide(storage)}" if storage else ""
    own = "".join(f" --plugin {path}" for path in plugins().values())
    command = f"pfl-ops tune {experiment.algorithm.name} --name {ledger.name}{where}{own} --resume"
    return f"stopped with {ledger.done()} of {settings.trials} trials done; go on with: {command}"
