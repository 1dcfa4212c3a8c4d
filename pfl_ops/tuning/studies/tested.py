"""The tests of a study in several environments: its choice and FedAvg on test data, in tuned and held-out ones."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from pfl_ops.config.experiment import Experiment
from pfl_ops.data.copies import copies_remark
from pfl_ops.data.datasets import load
from pfl_ops.errors import PflOpsError
from pfl_ops.spaces import Point
from pfl_ops.statistics import mean_std
from pfl_ops.tuning.studies.environments import baseline, baseline_metric
from pfl_ops.tuning.studies.settings import Settings

if TYPE_CHECKING:
    from pfl_ops.results import Result

CHOICE, FEDAVG = "choice", "fedavg"  # whose test it is


@dataclass(frozen=True)
class PlannedTest:
    """A test run.

    Attributes:
        experiment: what is run. environment: its name. held_out: True if no trial was run in it.
        roles: whose test it is, `CHOICE`, `FEDAVG`, or both if the choice is FedAvg with its default settings.
    """

    experiment: Experiment
    environment: str
    held_out: bool
    roles: tuple[str, ...]

    @property
    def label(self) -> str:
        """In names of runs: the environment, and FedAvg if it is that one's."""
        return self.environment if CHOICE in self.roles else f"{self.environment} fedavg"


def tested_experiment(trial: Experiment, point: Point, original: Experiment) -> Experiment:
    """Return the experiment of a choice's test runs: training and validation data together, scored on test data.

    All else is as in its trials, which may count local work in another unit than the original experiment (compared
    methods have one); the stages to score and the number of repetitions are the original's.
    """
    tested = {"evaluation.split": "test", "evaluation.stages": original.evaluation.stages}
    return trial.override({**point, **tested, "repetitions": original.repetitions})


def planned_tests(settings: Settings, point: Point, repetitions: int, data_dir: str | None) -> list[PlannedTest]:
    """Return the test runs of a choice: in each environment its own and FedAvg's, with the seeds seed, seed + 1, ...

    Training and validation data are together, as in all tests. Runs that are the same are one.
    """
    planned: dict[str, PlannedTest] = {}
    for environment in (*settings.environments, *settings.held_out):
        here = environment.of(settings.experiment).override({"evaluation.split": "test"})
        for role, experiment in ((CHOICE, here.override(point)), (FEDAVG, baseline(here))):
            for i in range(repetitions):
                one = experiment.repetition(i)
                key, held_out = one.digest(data_dir), environment in settings.held_out
                roles = (*planned[key].roles, role) if key in planned else (role,)
                planned[key] = PlannedTest(one, environment.name, held_out, roles)
    return list(planned.values())


def runs_table(
    planned: Sequence[PlannedTest], outcomes: "Sequence[Result | str]", metrics: Sequence[str]
) -> pd.DataFrame:
    """Return one row a test run and role: environment, held_out, role, seed, <metric>, run_id, error.

    Args:
        planned: the runs. outcomes: their results, or how they diverged. metrics: of the study; columns are their keys
            on test data, of FedAvg at its own stage under the same name.
    """
    rows = []
    for test, outcome in zip(planned, outcomes, strict=True):
        final = {} if isinstance(outcome, str) else outcome.final
        end = (None, outcome) if isinstance(outcome, str) else (outcome.run_id, "")
        for role in test.roles:
            keys = [tested_key(baseline_metric(metric) if role == FEDAVG else metric) for metric in metrics]
            values = [final.get(f"final/{key}", math.nan) for key in keys]
            rows.append((test.environment, test.held_out, role, test.experiment.seed, *values, *end))
    columns = ["environment", "held_out", "role", "seed", *map(tested_key, metrics), "run_id", "error"]
    return pd.DataFrame(rows, columns=columns)


def tested_key(metric: str) -> str:
    """Return the key of a metric on test data.

    >>> tested_key("val/L1/acc"), tested_key("train/loss")
    ('test/L1/acc', 'train/loss')
    """
    return f"test/{metric.removeprefix('val/')}" if metric.startswith("val/") else metric


def missing_notes(tests: pd.DataFrame, metrics: Iterable[str]) -> tuple[str, ...]:
    """Return a line on each metric that finished test runs have no value of, so that an environment has no mean.

    Args:
        tests: as `runs_table` returns it. metrics: of the study.

    >>> tests = pd.DataFrame({"environment": "path", "role": "choice", "error": "", "test/L1/acc": [1.2, None]})
    >>> missing_notes(tests, ["val/L1/acc"])
    ('no value of test/L1/acc: the choice in path (1 of 2 test runs)',)
    """
    told = []
    finished = tests[tests["error"] == ""]
    by = [finished["environment"], finished["role"]]
    for metric in metrics:
        key = tested_key(metric)
        if key == metric and len(finished) and finished[key].isna().all():
            told.append(f"no value of {metric} on test data: a test run has scores, no loss and no costs")
            continue
        lacking = [
            f"{'FedAvg' if role == FEDAVG else 'the choice'} in {name} ({lost.sum()} of {len(lost)} test runs)"
            for (name, role), lost in finished[key].isna().groupby(by, sort=False)
            if lost.any()
        ]
        told += [f"no value of {key}: {', '.join(lacking)}"] if lacking else []
    return tuple(told)


def copies_notes(planned: Sequence[PlannedTest], data_dir: str | None) -> tuple[str, ...]:
    """Return a line on test samples that have the values of a training sample; with their environments if not all have
    some."""
    data = {test.environment: test.experiment.data for test in planned}
    found: dict[str, list[str]] = {}
    for name, one in data.items():
        try:
            remark = copies_remark(load(one, data_dir=data_dir), "test")
        except PflOpsError:  # the tests were read, and their data are not here
            continue
        found.setdefault(remark, []).append(name)
    return tuple(
        remark if len(names) == len(data) else f"{', '.join(names)}: {remark}"
        for remark, names in found.items()
        if remark
    )


def summary(settings: Settings, scales: dict[str, dict[str, float]], scores: dict[str, dict[str, float]],
            tests: pd.DataFrame) -> pd.DataFrame:  # fmt: skip
    """Return one row an environment and metric: scores of FedAvg and of the choice, on validation and on test data.

    Args:
        scales: environment -> metric -> FedAvg's mean validation score.
        scores: name of the value -> environment -> the chosen trial's score by FedAvg's.
        tests: as `runs_table` returns it.
    Returns:
        environment; held_out; metric; fedavg, choice: means over the seeds of a trial on validation data, NaN where
        held out; ratio: of these two; fedavg_test, choice_test, ratio_test: likewise on test data, NaN if a run
        diverged or has no value, or there are no tests; fedavg_std, choice_std: sample standard deviations over test
        seeds; n: these.
    """
    rows = []
    for environment in (*settings.environments, *settings.held_out):
        name, held_out = environment.name, environment in settings.held_out
        for metric, value in zip(settings.objective.metrics, settings.goal.metrics, strict=True):
            scale = scales.get(name, {}).get(metric, math.nan)
            ratio = scores.get(value, {}).get(name, math.nan)
            row: dict[str, Any] = {"environment": name, "held_out": held_out, "metric": metric}
            row |= {"fedavg": scale, "choice": ratio * scale, "ratio": ratio}
            for role in (FEDAVG, CHOICE):
                here = tests[(tests["environment"] == name) & (tests["role"] == role)][tested_key(metric)]
                mean, std = (math.nan, None) if here.isna().any() else mean_std(map(float, here))
                row |= {f"{role}_test": mean, f"{role}_std": math.nan if std is None else std, "n": len(here)}
            rows.append(row)
    columns = ["environment", "held_out", "metric", "fedavg", "choice", "ratio", "fedavg_test", "fedavg_std"]
    found = pd.DataFrame(rows)
    found["ratio_test"] = found["choice_test"] / found["fedavg_test"].where(found["fedavg_test"] != 0)
    return found[[*columns, "choice_test", "choice_std", "ratio_test", "n"]]
