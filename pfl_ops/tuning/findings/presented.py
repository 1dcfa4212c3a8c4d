"""A study on MLflow's page: its description, its saved views, and the numbers by which studies compare."""

import math
from collections.abc import Sequence

import pandas as pd

from pfl_ops import statistics, tag_names
from pfl_ops.errors import count, sentence
from pfl_ops.tracking import Run
from pfl_ops.tracking.descriptions import notes, questions
from pfl_ops.tuning.findings.study import Study
from pfl_ops.tuning.session.begin import PreparedStudy
from pfl_ops.tuning.studies.objective import Objective
from pfl_ops.units import part_of


def begin(parent: Run, plan: PreparedStudy, shared: bool) -> None:
    """Views of a study's trials, from its first round on; `shared`: its MLflow experiment has other studies too."""
    settings, goal = plan.settings, plan.settings.objective
    experiment = settings.experiment
    paths = list(dict.fromkeys(parameter.key for parameter in settings.space.parameters))  # lr of sgd, and of adam
    views = questions.trials(
        plan.name,
        goal.metrics,
        goal.modes,
        paths,
        [parameter.key for parameter in settings.space.parameters if not parameter.when],
        goal.stages or (experiment.algorithm.own_stage,),
        plan.method if shared else "",
        tag_names.TRIAL if settings.combination else "",
    )
    data = f"{experiment.data.label}, {experiment.partition.kind}"
    if settings.environments:
        data = f"environments {', '.join(one.name for one in settings.environments)}"
    note = "" if shared else notes.tuning(experiment.algorithm.name, data, _words(settings.goal), paths)
    parent.present(note=note, views=views)
    parent.note(notes.began(plan.name, trials_view(plan.method, shared)))


def trials_view(method: str, shared: bool) -> str:
    """Return the key of the saved view of a study's trials; `shared`: its MLflow experiment has other studies too."""
    return questions.trials_key(method if shared else "")


def end(parent: Run, study: Study, view: str) -> None:
    """Show the choice and its quality: a description, and metrics beside those of other studies.

    Args:
        view: see `trials_view`.
    """
    experiment = study.experiment
    finals = [] if study.diverged else study.finals  # the other seeds alone would flatter
    tested = pd.DataFrame([questions.scores(r.final, "test", experiment.algorithm.own_stage) for r in finals])
    found = {str(key): statistics.mean_std(tested[key]) for key in tested}
    scores: dict[str, float] = {}
    for key in (f"score/{name}" for name in questions.SCORES):
        mean, std = found.get(key, (math.nan, None))
        scores |= {key: mean, f"{key}/std": math.nan if std is None else std}
    counts = {"score/n": float(len(tested)), "score/trials": float(len(study.table))}
    parent.set_metrics(len(study.table) + len(tested), {**study.values, **scores, **counts})
    test = ", ".join(
        f"`{key}` {m:.4f}{'' if s is None else f' ± {s:.4f}'}{part_of(int(tested[key].count()), len(tested))}"
        for key, (m, s) in found.items()
    )
    text = f"Tested with {count(len(tested), 'seed')}: {test}." if found else ""
    if study.diverged:
        text = "Test runs diverged: " + "; ".join(f"seed {seed} {how}" for seed, how in study.diverged.items()) + "."
    if study.environments is not None:
        text = _in_environments(study.environments, (*study.environment_notes, *study.missing_notes))
    told = [sentence(note) for note in (study.front_note, study.tie_note) if note]
    told += [f"On validation data, {study.confirmation}."] if study.confirmation else []
    told += [sentence(study.noise)] if study.noise else []
    text = "\n\n".join([*told, text or "The test data stay closed."])
    goal = _words(study.objective)
    parent.note(notes.study(study.name, goal, study.best, study.values, study.trial, text, view))


def _in_environments(table: pd.DataFrame, lost: Sequence[str]) -> str:
    """The tests of a study in several environments, a line each; `lost`: those without a score."""
    tested = table[table["n"] > 0]
    lines = [
        f"- {row['environment']}{' (held out)' * row['held_out']}: `{row['metric'].replace('val/', 'test/')}` "
        f"{_mean(row['choice_test'])}, FedAvg {_mean(row['fedavg_test'])}"
        for row in tested.to_dict("records")
    ]
    return "\n".join(["Tested in", *lines, *(f"- {line}" for line in lost)]) if lines else ""


def _mean(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "no mean"


def _words(goal: Objective) -> str:
    """Describe the objective: the largest `val/L1/acc`."""
    return " and ".join(
        f"the {'largest' if mode == 'max' else 'smallest'} `{key}`"
        for key, mode in zip(goal.metrics, goal.modes, strict=True)
    )
