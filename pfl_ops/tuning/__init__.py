"""Tuning: Ray Tune runs the trials, Optuna proposes them, the study on disk is the only source of truth.

The only package that imports Ray and Optuna.

    settings   what defines a study
    ledger     the study on disk: which trials were made and how they ended
    search     Optuna as Ray's searcher, and ASHA
    trial      what runs in Ray's processes
    driver     what the driver does meanwhile: tracking, failures, events
    asked      what was asked for a trial: numbers, auto, or nothing
    packing    how many trials run at once, by measurement
    resources  Ray itself, and a trial's share of it
    begin      a study before it begins, and what it runs with
    session    one sitting: trials, then the test of the choice
    study      `tune`
    terms      what methods must share to be compared
    benchmark  `benchmark`: several methods under one budget
    board      its leaderboard
    show       a study in the terminal

and for the papers' suites:

    plans        what reproducing some suites at a scale means
    pool         whole runs in Ray's processes, as many at once as fit
    reproducing  `reproduce`
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pfl_ops.tuning import resources as resources  # first: Ray reads its settings when it is imported

if TYPE_CHECKING:
    from pfl_ops.tuning.driver import Event as Event
    from pfl_ops.tuning.plans import plan as plan
    from pfl_ops.tuning.reproducing import Reproduced as Reproduced
    from pfl_ops.tuning.reproducing import reproduce as reproduce
    from pfl_ops.tuning.session import StudyInterrupted as StudyInterrupted
    from pfl_ops.tuning.settings import Settings as Settings
    from pfl_ops.tuning.show import Show as Show
    from pfl_ops.tuning.study import Study as Study
    from pfl_ops.tuning.study import recorded as recorded
    from pfl_ops.tuning.study import tune as tune

_WHERE = {
    "plan": "plans",
    "Reproduced": "reproducing",
    "reproduce": "reproducing",
    "Event": "driver",
    "Settings": "settings",
    "Show": "show",
    "Study": "study",
    "StudyInterrupted": "session",
    "recorded": "study",
    "tune": "study",
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
    "Show",
    "Study",
    "StudyInterrupted",
    "plan",
    "recorded",
    "reproduce",
    "tune",
]
