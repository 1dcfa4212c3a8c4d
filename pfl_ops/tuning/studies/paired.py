"""A pruner for trials of several runs: it ends a trial that does worse than the best one with the same clients.

In the manner of Optuna's `WilcoxonPruner`, whose test and rule decide. An instance is a group of clients in one run of
a trial (a seed in an environment): the same clients with the same data in every trial, so that trials are compared in
pairs, and neither an easy seed nor an easy group counts for or against one of them.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
import optuna
from numpy.typing import ArrayLike
from optuna.trial import TrialState, create_trial

from pfl_ops.errors import PflOpsError, echo
from pfl_ops.tuning.studies.parts import Combination, PartResult
from pfl_ops.tuning.studies.study_storage import PARTS, StudyStorage

CLIENT_GROUPS = 10
"""Groups of clients in a run: client k is in group k mod 10."""
P_THRESHOLD = 0.1
"""One-sided p of Wilcoxon's signed-rank test below which a trial is stopped; Optuna's own threshold."""
MEAN_OVER_CLIENTS = re.compile(r"val/(L1|L2|G)/(acc|local/mean|global/mean)")
COLUMNS = {"acc": ("local", "global"), "local/mean": ("local",), "global/mean": ("global",)}
"""End of a metric -> columns of a table of clients whose sum is a client's value."""


def check_metric(metric: str) -> None:
    """Refuse a metric that is no mean over clients.

    >>> check_metric("val/L1/local/worst")
    Traceback (most recent call last):
    ...
    pfl_ops.errors.PflOpsError: paired needs a mean over clients, val/L1/acc or val/L1/local/mean; got 'val/L1/...
    """
    if not MEAN_OVER_CLIENTS.fullmatch(metric):
        raise PflOpsError(
            f"paired needs a mean over clients, val/L1/acc or val/L1/local/mean; got '{echo(metric)}'; use one of "
            "these, or --scheduler none"
        )


def check_paired(metric: str, several: bool, aggregate: str | None) -> None:
    """Refuse what the paired pruner can't compare.

    Raises:
        PflOpsError: trials of one run, the worst environment, or a metric that is no mean over clients.
    """
    if not several:
        raise PflOpsError(
            "paired stops a trial between two of its runs: --seeds-per-trial 2 or more, or --environments"
        )
    if aggregate == "worst":
        raise PflOpsError("paired compares means over environments: --aggregate mean, or --scheduler none")
    check_metric(metric)


def by_group(clients: Mapping[str, ArrayLike], metric: str) -> dict[str, float]:
    """Return the mean of a metric over each group's clients; groups without a scored client have none.

    Args:
        clients: column -> values, one a client and stage, see `finish.table`; {}: none were kept.

    >>> table = {"client": [0, 10, 1], "stage": ["L1"] * 3, "local": [0.5, 1.0, 0.25], "global": [0.5, 0.5, 0.5]}
    >>> by_group(table, "val/L1/acc"), by_group(table, "val/L1/local/mean")
    ({'0': 1.25, '1': 0.75}, {'0': 0.75, '1': 0.25})
    """
    _, stage, end = metric.split("/", 2)
    if not clients:
        return {}
    values = np.sum([np.asarray(clients[column], dtype=np.float64) for column in COLUMNS[end]], axis=0)
    is_scored = (np.asarray(clients["stage"]) == stage) & np.isfinite(values)
    group, values = np.asarray(clients["client"])[is_scored] % CLIENT_GROUPS, values[is_scored]
    _, first = np.unique(group, return_index=True)
    return {str(group[i]): fmean(values[group == group[i]]) for i in np.sort(first)}


class PairedPruner:
    """Decides after each run of a trial whether its other runs are worth it.

    Args:
        maximise: True if larger is better. study_storage: has the trials that are over.
    """

    def __init__(self, maximise: bool, study_storage: StudyStorage) -> None:
        self.maximise, self.study_storage = maximise, study_storage

    def is_worse(self, results: Sequence[PartResult], combination: Combination) -> bool:
        """Return True if a trial with these results is worse than the best one, in the instances of both.

        The best one is the best complete trial whose runs have scores by group: not those that were read from
        checkpoints of earlier versions.
        """
        best_scores, scores = self._best(combination), instances(results, combination)
        common = sorted(best_scores.keys() & scores.keys())
        if not common:
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            pruner = optuna.pruners.WilcoxonPruner(p_threshold=P_THRESHOLD)
        study = optuna.create_study(direction="maximize" if self.maximise else "minimize")  # in memory
        study.add_trial(_trial(TrialState.COMPLETE, [best_scores[instance] for instance in common]))
        return pruner.prune(study, _trial(TrialState.RUNNING, [scores[instance] for instance in common]))

    def _best(self, combination: Combination) -> dict[tuple[int, str], float]:
        for _, trial in self.study_storage.ranked():
            found = instances([PartResult.from_dict(one) for one in trial.user_attrs.get(PARTS, ())], combination)
            if found:
                return found
        return {}


def instances(results: Sequence[PartResult], combination: Combination) -> dict[tuple[int, str], float]:
    """Return (index of the run, group) -> value, divided by FedAvg's where the trial's value is."""
    return {
        (combination.parts.index(result.part), group): value / _scale(result, combination)
        for result in results
        for group, value in result.groups.items()
    }


def value_of_stopped(results: Sequence[PartResult], combination: Combination) -> float:
    """Return the mean score of the runs of a trial that was stopped."""
    (metric,) = combination.metrics
    return fmean(result.values[metric] / _scale(result, combination) for result in results)


def _scale(result: PartResult, combination: Combination) -> float:
    (metric,) = combination.metrics
    return combination.scales[result.part.environment][metric] if combination.scales else 1.0


def _trial(state: TrialState, values: Sequence[float]) -> optuna.trial.FrozenTrial:
    value = fmean(values) if state is TrialState.COMPLETE else None
    return create_trial(state=state, value=value, intermediate_values=dict(enumerate(values)))
