"""Tuning: Optuna proposes trials, `jobs` runs them, the study on disk is the only source of truth.

The only package that imports Optuna.

Its rooms; each imports only those below it:

    commands   the calls behind the commands that search: `tune`, `benchmark`, `reproduce --choose`
    findings   what studies found: choices, leaderboards, pictures
    session    one call of a study: its trials, the confirmation, the test of the choice
    studies    a study: its definition, and its record on disk
    resources  the resources of jobs

    suites     the papers' suites as runs: `reproduce`; beside `commands`
    tables     tables of trials, for research on tuners: studies replayed on them; beside `commands`
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl_ops.tuning.commands.tune_study import recorded as recorded
    from pfl_ops.tuning.commands.tune_study import started_from as started_from
    from pfl_ops.tuning.commands.tune_study import tune as tune
    from pfl_ops.tuning.findings.show import StudyProgress as StudyProgress
    from pfl_ops.tuning.findings.study import Study as Study
    from pfl_ops.tuning.session.confirm import Confirmation as Confirmation
    from pfl_ops.tuning.session.events import Event as Event
    from pfl_ops.tuning.session.session import StudyInterrupted as StudyInterrupted
    from pfl_ops.tuning.studies.settings import Settings as Settings
    from pfl_ops.tuning.suites.cells import Reproduced as Reproduced
    from pfl_ops.tuning.suites.plans import plan as plan
    from pfl_ops.tuning.suites.reproducing import reproduce as reproduce

_WHERE = {
    "plan": "suites.plans",
    "Reproduced": "suites.cells",
    "reproduce": "suites.reproducing",
    "Confirmation": "session.confirm",
    "Event": "session.events",
    "Settings": "studies.settings",
    "StudyProgress": "findings.show",
    "Study": "findings.study",
    "StudyInterrupted": "session.session",
    "recorded": "commands.tune_study",
    "started_from": "commands.tune_study",
    "tune": "commands.tune_study",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a trial's process needs neither Optuna nor MLflow."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"pfl_ops.tuning.{_WHERE[name]}"), name)


__all__ = list(_WHERE)
