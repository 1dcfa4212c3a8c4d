"""The studies that a command would begin or go on with, after the checks of `tune` and `benchmark`.

Nothing is written. A command line reads them before its estimate; a dry run ends there. `benchmark` begins with them.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optuna.storages import BaseStorage

from pfl_ops import runs
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError, unknown
from pfl_ops.federation.settings import Execution
from pfl_ops.spaces import Space
from pfl_ops.tracking import WorkFolder
from pfl_ops.tuning.commands.terms import check_build, check_fair, settings_of
from pfl_ops.tuning.session.begin import BENCHMARK, PreparedStudy, check, data_folders, readable
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies.budget import left_of
from pfl_ops.tuning.studies.environments import check_tests_apart
from pfl_ops.tuning.studies.limits import MOST_TRIALS, StudyLimits
from pfl_ops.tuning.studies.parts import check_same_seeds, check_seeds
from pfl_ops.tuning.studies.settings import TRIALS, Settings, check_top
from pfl_ops.tuning.studies.study_storage import StudyStorage, point_of, recorded
from pfl_ops.tuning.studies.tested import tested_experiment


@dataclass(frozen=True)
class StudyOutlook:
    """A study that a command would run: its plan, and what is left of it.

    Attributes:
        begun: its record on disk; None: the study is a new one.
    """

    plan: PreparedStudy
    begun: StudyStorage | None = None

    @property
    def left(self) -> Settings:
        """The study's settings with what is left of the budgets of its search."""
        return self.plan.settings if self.begun is None else left_of(self.plan.settings, self.begun)

    @property
    def baselines(self) -> int:
        """Runs of FedAvg in the study's environments that are left."""
        if not self.plan.settings.environments or not self.left.trials:
            return 0
        return self.plan.settings.n_parts - (len(self.begun.baselines()) if self.begun else 0)

    @property
    def confirmations(self) -> int:
        """Runs with new seeds that are left, at most; those that the best configurations have so far are none."""
        settings = self.plan.settings
        confirm, top = settings.confirm, min(settings.confirm_top, settings.trials)
        if not confirm or top < 2 or not settings.objective.single:
            return 0
        most = top * confirm * max(1, len(settings.environments))
        if self.begun is None or self.left.trials:
            return most
        best = len(self.begun.top(top))
        if best < 2 or self.begun.is_confirmed(confirm, settings.confirm_top):
            return 0
        return max(0, most * best // top - self.begun.confirmed_runs(top))

    def tests(self, data_dir: str | None) -> int:
        """Test runs of the choice that are left: those of a choice that may change count. Not for environments.

        Args:
            data_dir: absolute.
        """
        best = self.begun.chosen() if self.begun else None
        if best is None or self.left.trials or self.confirmations or not WorkFolder.at().root.exists():
            return self.plan.finals
        chosen = tested_experiment(self.plan.settings.experiment, point_of(best[1]), self.plan.experiment)
        return sum(not runs.is_finished(chosen.repetition(i), data_dir=data_dir) for i in range(self.plan.finals))


def study_plan(
    experiment: Experiment | None,
    settings: Settings,
    finals: int,
    *,
    limits: StudyLimits,
    name: str | None,
    resume: bool,
    storage: str | None,
    data_dir: str | None,
    execution: Execution,
    address: str | None,
) -> StudyOutlook:
    """Return the study that `tune` with these arguments would run.

    Args:
        experiment: as the user described it; none: that of the settings. finals: test runs.
    Raises:
        PflOpsError: as for `tune`, before the first trial.
    """
    check(finals, name)
    if experiment is not None:
        check_tests_apart(settings.experiment, (*settings.environments, *settings.held_out))
    folders, experiment = data_folders(data_dir, address), experiment or settings.experiment
    name = name or study_name(settings, experiment, folders)
    check_environments_build(settings, folders, execution)
    plan = PreparedStudy(experiment, settings, name, finals)
    if not resume:  # else it would be told to go on with --resume
        study_database.check_free(WorkFolder.at().root, name)
    begun = plan.found(readable(storage), folders, resume)
    plan = plan if begun is None else plan.limited(begun, limits)
    check_top(limits, plan.settings)
    return StudyOutlook(plan, begun)


def study_name(settings: Settings, experiment: Experiment, data_dir: str | None) -> str:
    """<algorithm>-<dataset>-<partition>-<hash>."""
    return f"{settings.label(experiment)}-{settings.digest(data_dir)[:8]}"


def check_environments_build(settings: Settings, data_dir: str | None, execution: Execution) -> None:
    """Refuse an environment of a study in which a trial or a test can't be run."""
    for one in (*settings.environments, *settings.held_out):
        check_build(one.of(settings.experiment), data_dir, execution, f"environment '{one.name}'")


def benchmark_plans(
    experiments: Sequence[Experiment] | None,
    *,
    studies: BaseStorage,
    data_dir: str | None,
    space: Space | str | Path | None = None,
    limits: StudyLimits,
    metric: str | Sequence[str] | None = None,
    mode: str | None = None,
    scheduler: str | None = None,
    hold: Collection[str] = (),
    seeds_per_trial: int | None = None,
    name: str | None = None,
    resume: bool = False,
    final_repetitions: int | None = None,
) -> list[PreparedStudy]:
    """Return the studies of a benchmark, one a method, with the limits that they would run with.

    Args:
        studies: where they lie. data_dir: absolute. The others: as `benchmark` has them.
    Raises:
        PflOpsError: as for `benchmark`, before the first trial.
    """
    check(final_repetitions, name)
    check_seeds(seeds_per_trial)
    given_scheduler = scheduler
    old = members_in(studies, name) if name else {}
    for each in old.values():
        check_same_seeds(seeds_per_trial, str(name), each.seeds_per_trial)
        seeds_per_trial, scheduler = each.seeds_per_trial, scheduler or each.scheduler
    if experiments is not None:
        settings = settings_of(experiments, space, limits, metric, mode, scheduler, hold, old, seeds_per_trial)
    elif name and resume and old:
        check_nothing_new("benchmark", space=space, metric=metric, mode=mode, scheduler=given_scheduler, hold=hold)
        settings = old
        experiments = [each.experiment for each in old.values()]
        if final_repetitions is None:
            final_repetitions = max(each.finals for each in old.values())
    else:
        raise PflOpsError("give an experiment for each method, or the name of a benchmark and resume")
    check_fair({**old, **settings})
    name = name or _benchmark_name(list(settings.values()), data_dir)
    there = old or members_in(studies, name)
    default = MOST_TRIALS if limits.hours or limits.samples else TRIALS
    given = limits
    limits = replace(limits, trials=limits.trials or max([each.trials for each in there.values()], default=default))
    for each in there.values():  # a method that is added later has the others' budgets, and is confirmed as they were
        limits = limits.else_of(each.limits)
    finals = max(one.repetitions for one in experiments) if final_repetitions is None else final_repetitions
    plans = [
        PreparedStudy(one, each.limited(limits), f"{name}.{method}", finals, name)
        for one, (method, each) in zip(experiments, settings.items(), strict=True)
    ]
    check_top(given, plans[0].settings)
    return plans


def check_benchmark(plans: Sequence[PreparedStudy], known: Mapping[str, Mapping[str, object]], resume: bool) -> None:
    """Refuse a benchmark with the name of a study, and one to go on with that does not exist.

    Args:
        known: what every study recorded about itself, by name.
    Raises:
        PflOpsError: see above.
    """
    name = plans[0].benchmark
    if name in known:
        raise PflOpsError(f"a study is named '{name}' already; choose another --name")
    others = {str(record[BENCHMARK]) for record in known.values() if record.get(BENCHMARK)}
    if resume and name not in others:
        no_benchmark = PflOpsError(f"no benchmark '{name}', and no other either")
        raise unknown("benchmark", name, others) if others else no_benchmark


def begun_studies(
    plans: Sequence[PreparedStudy], studies: BaseStorage, data_dir: str | None, resume: bool
) -> list[StudyOutlook]:
    """Return each study of a benchmark as it would run.

    Args:
        studies: where they lie. data_dir: absolute.
    Raises:
        PflOpsError: the benchmark can't be begun, or gone on with.
    """
    if not resume:
        study_database.check_free(WorkFolder.at().root, plans[0].benchmark)
    known = recorded(studies)
    check_benchmark(plans, known, resume)
    found = []
    for plan in plans:
        begun = plan.found(studies, data_dir, resume and plan.name in known)
        found.append(StudyOutlook(plan if begun is None else plan.limited(begun, plan.settings.limits), begun))
    return found


def check_nothing_new(what: str, **given: object) -> None:
    """Refuse arguments of a study's beginning where it goes on as recorded.

    Args:
        what: goes on ("study"). given: by their names; None and empty ones are not given.
    Raises:
        PflOpsError: the first that is given.
    """
    if name := next((name for name, value in given.items() if value), None):
        raise PflOpsError(
            f"a {what} keeps the {name} that it was begun with: leave it out, or give an experiment with it"
        )


def members_in(studies: BaseStorage, name: str) -> dict[str, Settings]:
    """Return the settings of each method of a benchmark, by method, in the order in which they were begun."""
    records = [record for record in recorded(studies).values() if record.get(BENCHMARK) == name]
    return {each.experiment.algorithm.name: each for each in map(Settings.from_dict, records)}


def _benchmark_name(settings: Sequence[Settings], data_dir: str | None) -> str:
    """benchmark-<dataset>-<partition>-<hash of all studies, in whatever order>."""
    digests = sorted(each.digest(data_dir) for each in settings)
    label = settings[0].experiment.label.removeprefix(settings[0].experiment.algorithm.name)
    return f"benchmark{label}-{hashlib.sha256(''.join(digests).encode()).hexdigest()[:8]}"
