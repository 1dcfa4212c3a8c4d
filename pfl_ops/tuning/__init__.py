"""Tuning: Optuna proposes trials, `jobs` runs them, the study on disk is the only source of truth.

The only package that imports Optuna.

    settings   the definition of a study
    study_database    where studies are kept: storages at addresses, locks
    study_storage     the study on disk: its trials and how they ended
    budget     trials, hours, samples: the limits of a search
    search     Optuna: the proposals and the results
    trials     a study's trials as jobs, tracked
    children   the runs below a study's in MLflow: trials, new seeds, FedAvg in environments
    tracked_job  jobs with their runs in MLflow
    reconcile  runs in MLflow as the study on disk says
    parts      trials of several runs, of whose scores their value is made
    paired     a pruner between two of these runs
    events     the events of a study, for who watches
    resource_request  the resources that a trial shall get: numbers, auto, or none
    packing    the number of trials that run at once, by measurement
    environments  named settings in which one configuration has to do well
    baselines  FedAvg in each of them: the scale of the scores there
    tested     the tests of a choice in environments
    begin      a study before it begins, and its resources
    warm_start  the best configurations of an earlier study, tried first
    confirm    the best configurations with new seeds, from which the choice is made
    session    one call of a study: trials, confirmation, the test of the choice
    pictures   importance and other pictures of a study
    study      what a study found
    tune_study `tune`
    terms      the settings that methods must share to be compared
    benchmark  `benchmark`: several methods under one budget
    leaderboard      its leaderboard (leaderboard_notes: sentences below it)
    costs      methods at equal cost of their searches
    show       a study in the terminal
    dashboard  Optuna's dashboard on the studies

for research on tuners:

    trial_table  configurations, seeds and environments in one file, with the truth on test data
    table_plan   configurations, environments and seeds of such a table
    tabulation   its runs
    replay       studies on it, with runs looked up
    regrets      their regrets

and for the papers' suites:

    plans        the runs of some suites at a scale
    cells        events of cells, suites as they end, finished cells at other scales
    reproduction the runs of a call of `reproduce`
    reproducing  `reproduce`
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl_ops.tuning.cells import Reproduced as Reproduced
    from pfl_ops.tuning.confirm import Confirmation as Confirmation
    from pfl_ops.tuning.events import Event as Event
    from pfl_ops.tuning.plans import plan as plan
    from pfl_ops.tuning.reproducing import reproduce as reproduce
    from pfl_ops.tuning.session import StudyInterrupted as StudyInterrupted
    from pfl_ops.tuning.settings import Settings as Settings
    from pfl_ops.tuning.show import StudyProgress as StudyProgress
    from pfl_ops.tuning.study import Study as Study
    from pfl_ops.tuning.tune_study import recorded as recorded
    from pfl_ops.tuning.tune_study import started_from as started_from
    from pfl_ops.tuning.tune_study import tune as tune

_WHERE = {
    "plan": "plans",
    "Reproduced": "cells",
    "reproduce": "reproducing",
    "Confirmation": "confirm",
    "Event": "events",
    "Settings": "settings",
    "StudyProgress": "show",
    "Study": "study",
    "StudyInterrupted": "session",
    "recorded": "tune_study",
    "started_from": "tune_study",
    "tune": "tune_study",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a trial's process needs neither Optuna nor MLflow."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pfl_ops.tuning.{_WHERE[name]}"), name)


__all__ = [
    "Event",
    "Reproduced",
    "Settings",
    "Study",
    "StudyInterrupted",
    "StudyProgress",
    "plan",
    "recorded",
    "reproduce",
    "started_from",
    "tune",
]
