"""The settings of a suite's methods by its rule: one study a method, on validation data, all with one budget.

No test data are opened. A stopped call goes on where it was: the studies lie in the work folder.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from pfl_ops import spaces
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.jobs.resources import cluster
from pfl_ops.papers import Suite
from pfl_ops.papers.rules import ChoiceRule, Choices, ChoiceScale
from pfl_ops.tracking import WorkFolder
from pfl_ops.tuning.commands.tune_study import tune
from pfl_ops.tuning.findings.study import Study
from pfl_ops.tuning.session.begin import stored
from pfl_ops.tuning.studies.study_storage import recorded


def choose(
    suite: Suite, rule: ChoiceRule, *, scale: ChoiceScale = "full", home: str | Path | None = None, **settings: Any
) -> Choices:
    """Tune every method of a rule and return what was chosen.

    Args:
        suite: in which the rule's cells are. scale: of these. home, settings: as `tune_study.tune` has them.
    Raises:
        PflOpsError: a method has no result. StudyInterrupted: Ctrl-C; the same call goes on.
    """
    methods: dict[str, Mapping[str, Any]] = {}
    scores: dict[str, float] = {}
    known = recorded(stored(None, WorkFolder.open(home)))
    with cluster(None):
        for label in rule.cells:
            name = study_name(rule, label, scale)
            study = tune(
                experiment_of(suite, rule, label, scale),
                space=spaces.from_dict(rule.ranges(label), rule.name),
                trials=rule.trials,
                metric=rule.metric,
                scheduler="none",
                confirm=rule.confirm,
                confirm_top=rule.confirm_top if rule.confirm else None,
                final_repetitions=0,
                name=name,
                resume=name in known,
                home=home,
                **settings,
            )
            methods[label] = dict(study.best)
            scores[label] = round(score(study, rule), 4)
    command = f"{suite.command}{'' if scale == 'full' else f' --scale {scale}'} --choose FILE"
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    return Choices(rule.name, "chosen", command, today, methods, rule.budget, scores, scale)


def experiment_of(suite: Suite, rule: ChoiceRule, label: str, scale: ChoiceScale = "full") -> Experiment:
    """Return the experiment whose settings are chosen: a cell at a scale, with the rule's seed.

    The settings that are varied start at those before the rule, so that an earlier choice does not change the study.
    Only the last round is scored, which is more than half of the cost of a linear model and changes no score of it.
    """
    experiment = suite.experiment(suite.cell(rule.cells[label]), scale)
    scored = {"evaluation.every": experiment.training.rounds, "seed": rule.seed, "repetitions": 1}
    return experiment.override({**rule.before.get(label, {}), **scored})


def score(study: Study, rule: ChoiceRule) -> float:
    """Return the validation score of a study's choice: its mean over the new seeds, else that of its trial.

    Raises:
        PflOpsError: every configuration diverged with a new seed, so that nothing was chosen by the rule.
    """
    confirmed = study.confirmation
    if confirmed is None:
        return float(study.values[rule.metric])
    if confirmed.winner in confirmed.lost:
        raise PflOpsError(f"{study.name}: {confirmed}")
    return fmean(confirmed.values[confirmed.winner].values())


def study_name(rule: ChoiceRule, label: str, scale: ChoiceScale = "full") -> str:
    """Return the name of a method's study."""
    return f"{rule.name}{'' if scale == 'full' else f'-{scale}'}.{label}"
