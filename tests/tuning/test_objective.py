"""A metric that no trial will report is refused before the first one."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from pfl_ops import spaces
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.tuning.findings.study import Study
from pfl_ops.tuning.session.confirm import Confirmation
from pfl_ops.tuning.studies.limits import StudyLimits
from pfl_ops.tuning.studies.objective import Objective, allowed, objective
from pfl_ops.tuning.studies.settings import Settings


@pytest.mark.parametrize("scored", [None, 5])
@pytest.mark.parametrize(
    ("method", "share", "told"),
    [("fedavg_ft", 0.3, "0.3 of the clients"), ("fedavg_ft", 1.0, ""), ("fedavg", 0.3, "")],
)
def test_the_clients_behind_a_score_at_l2_are_told(method, share, told, scored):
    """The last round's L2 is its cohort's: absent clients are trained for it in tests alone. Tests do not score all
    clients if these are drawn."""
    experiment = Experiment.of(method, participation=share).override({"evaluation.clients": scored})
    note = Settings.of(experiment).scored_clients.note
    assert told in note and note.endswith("; tests score absent clients too" if told else "")
    assert bool(note) == bool(told)
    assert ("among the 5 that are scored (about 1.5 of a cohort)" in note) == bool(told and scored)


def test_the_scored_clients_of_a_cohort_are_told_if_clients_are_drawn():
    """Of 1,000 clients ten take part, and 200 are scored: about two of a cohort."""
    experiment = Experiment.of("fedavg_ft", participation=0.01)
    few, many = (experiment.override({"partition.clients": n}) for n in (200, 1000))
    assert "scored (" not in Settings.of(few).scored_clients.note
    told = "0.01 of the clients, if they are among the 200 that are scored (about 2 of a cohort), the same"
    assert told in Settings.of(many).scored_clients.note


def test_the_smallest_share_of_several_environments_is_told():
    shares = ["participation.share=0.5", "participation.share=0.25", "participation.share=0.75"]
    settings = Settings.of(Experiment.of("fedavg_ft", dataset="digits"), metric="val/L2/acc", environments=shares)
    assert settings.scored_clients.share == 0.25 and ", 0.25 of the clients" in settings.scored_clients.note


def test_a_number_of_scored_clients_that_is_not_known_is_not_guessed():
    """The clients of a file may be 30, all scored, or 3,400: the line said about 20 of a cohort of 3."""
    experiment = Experiment.of("fedavg_ft", dataset="digits", participation=0.1).override({"partition.kind": "natural"})
    note = Settings.of(experiment, metric="val/L2/acc").scored_clients.note
    assert "0.1 of the clients, as far as they are among the clients that are scored, 200 at most, the same in" in note


@pytest.mark.parametrize("more", [{}, {"participation.kind": "stragglers"}])
def test_last_cohort_without_a_scored_client_is_refused(more):
    """Three of 30 clients take part, three are scored: of the first 20 seeds those are refused whose last round has no
    score at L2."""
    few = Experiment.of("fedavg_ft", dataset="digits", train_size=300, partition="iid", clients=30, model="linear",
                        rounds=2, participation=0.1).override({"evaluation.clients": 3, **more})  # fmt: skip
    for seed in range(20):
        experiment = few.override({"seed": seed, "evaluation.split": "validation"})
        simulation = experiment.build(execution=Execution(way="loop", workers=1, threads=1), final=False)
        *_, last = simulation.run()
        told = f"with seed {seed} none of these is among the 3 that are scored: use --set evaluation.clients=30"
        if "val/L2/acc" in last.metrics:
            Settings.of(experiment, limits=StudyLimits(confirm=0))
            continue
        with pytest.raises(PflOpsError, match=told):
            Settings.of(experiment)
        Settings.of(experiment, metric="val/L1/acc")
        Settings.of(experiment.override({"evaluation.clients": 30}))


def test_last_cohort_is_checked_for_seeds_of_the_confirmation():
    """The trials' seed, 0, has a scored client in its last cohort."""
    few = Experiment.of("fedavg_ft", dataset="digits", clients=30, participation=0.1, rounds=5)
    few = few.override({"evaluation.clients": 3})
    Settings.of(few, limits=StudyLimits(confirm=0))
    with pytest.raises(PflOpsError, match=r"with seed 100\d none"):
        Settings.of(few, limits=StudyLimits(confirm=20))


@pytest.mark.parametrize(
    ("method", "space", "part", "why"),
    [
        (
            "fedavg_ft",
            "participation.share: {choice: [0.1, 1.0]}",
            "cohort, of 0.1 of the clients or more, not the same",
            "(participation.share is varied)",
        ),
        (
            "fedavg_ft",
            "participation.gamma: {float: [0.1, 1.0]}",
            "cohort, 0.3 of the clients, not the same",
            "(participation.gamma is varied)",
        ),
        ("fedavg_ft", "participation.weighting: {choice: [samples, uniform]}", "cohort, 0.3 of the clients, the", ""),
        ("drdm", None, "cohort, 0.3 of the clients, not the same", "(drdm draws its own cohorts)"),
    ],
)
def test_trials_of_a_seed_with_other_cohorts_at_l2_are_told(method, space, part, why):
    """20 clients: a trial with a share of 0.1 is scored on 2, one with 1.0 on all; nothing said it."""
    changes = {"participation.kind": "dirichlet"} if method == "fedavg_ft" else {}
    experiment = Experiment.of(method, dataset="digits", participation=0.3, **changes)
    settings = Settings.of(experiment, space and spaces.parse(space), metric="val/L2/acc")
    assert part in settings.scored_clients.note and why in settings.scored_clients.note
    assert bool(settings.scored_clients.difference) == bool(why)
    assert ("the same in all trials of a seed" in settings.scored_clients.note) == (not why)
    assert Settings.of(experiment, space and spaces.parse(space), metric="val/L1/acc").scored_clients.note == ""


def test_the_better_direction_is_known(experiment):
    assert objective(experiment, "val/L1/acc") == Objective(("val/L1/acc",), ("max",))
    wanted = ["val/L1/local/std", "train/loss", "cost/up_bytes", "cost/samples_per_second", "val/G/global/mean"]
    assert objective(experiment, wanted).modes == ("min", "min", "min", "max", "max")
    assert objective(experiment, ["val/L1/acc", "train/loss"], "max").modes == ("max", "max")
    assert objective(experiment, ["val/L1/acc", "train/loss"], ["min", "max"]).modes == ("min", "max")


def test_only_the_objective_s_stages_are_evaluated(experiment):
    assert objective(experiment, ["val/L1/acc", "val/G/global/mean"]).stages == ("L1", "G")
    assert objective(experiment, "train/loss").stages == ()


def test_names_follow_the_experiment(experiment):
    assert "val/L1/synthetic_50/mean" not in allowed(experiment)
    other = experiment.override({"evaluation.synthetic": [50], "evaluation.eps": 0.8})
    assert {"val/L1/synthetic_50/mean", "val/L2/local/rho_80", "val/G/acc"} <= set(allowed(other))


@pytest.mark.parametrize(
    ("metric", "mode", "message"),
    [
        ("val/L1/ac", None, "no metric named 'val/L1/ac' for this experiment; did you mean 'val/L1/acc'?"),
        ("L1/acc", None, "did you mean 'val/L1/acc'?"),
        ("acc", None, "did you mean 'val/L1/acc'?"),
        ("Acc", None, "did you mean 'val/L1/acc'?"),
        ("val/L1/local", None, "did you mean 'val/L1/local/mean'?"),
        ("xyzzy", None, "for example val/L1/"),
        ("test/L1/acc", None, "tuning never sees the test data; did you mean 'val/L1/acc'?"),
        (["val/L1/acc", "val/L1/acc"], None, "several different ones"),
        ([], None, "give one metric"),
        ("val/L1/acc", "maximum", "mode must be max or min, got 'maximum'"),
        (["val/L1/acc", "train/loss"], ["max"], "2 metrics need as many modes, or one for all; got 1"),
    ],
)
def test_what_is_wrong_is_said(experiment, metric, mode, message):
    with pytest.raises(PflOpsError) as caught:
        objective(experiment, metric, mode)
    assert message in str(caught.value)


@pytest.mark.parametrize("metric", ["val/L1/local/clients", "local/clients", "test/G/local/clients", "train/lr"])
@pytest.mark.parametrize("mode", [None, "max"])
def test_objective_of_a_neutral_metric_is_refused(experiment: Experiment, metric: str, mode: str | None) -> None:
    """The number of scored clients is the same in all trials; the names in the message can be objectives."""
    with pytest.raises(PflOpsError) as caught:
        objective(experiment, [metric, "val/L1/acc"], mode)
    told = str(caught.value)
    assert told.startswith(f"'{metric}' is neither better large nor small")
    named = told.rpartition(": ")[2].split(", ")
    assert objective(experiment, named).metrics == tuple(named) and metric not in allowed(experiment)


def test_trials_as_good_as_the_choice_are_named() -> None:
    """Trials 1 to 3 have one value, 3 the settings of 1, and 4 was stopped. With new seeds 0 and 1 were repeated."""
    goal = Objective(("val/L1/local/worst",), ("max",))
    table = pd.DataFrame(
        {"trial": range(5), "state": ["complete"] * 4 + ["pruned"], goal.metrics[0]: [0.2] + [0.0] * 4}
    )
    table = table.assign(**{"val/L1/local/worst/std": 0.1, "training.lr": [0.1, 0.2, 0.3, 0.2, 0.4], "error": ""})
    study = Study("s", None, goal, {"training.lr": 0.1}, 0, {goal.metrics[0]: 0.2}, Experiment.of("fedavg"), table)
    assert study.tie_note == ""
    worse = replace(study, table=table[1:], trial=1)
    assert worse.tie_note == "as good in the search as trial 001, and later, so not chosen: 002"
    found = Confirmation(goal.metrics[0], True, {0: {1000: 0.1}, 1: {1000: 0.2}}, {}, 1, (1000,))
    confirmed = replace(study, trial=1, confirmation=found)
    assert confirmed.tie_note == "as good in the search as trial 001, and later, so not repeated with new seeds: 002"
    assert replace(confirmed, table=table.assign(**{goal.metrics[0]: 0.0})).tie_note.endswith("new seeds: 002")
    many = pd.concat([table.iloc[1:2].assign(trial=t, **{"training.lr": 1.0 + t}) for t in range(10)])
    assert replace(study, table=many).tie_note.endswith("not chosen: 001, 002, 003, 004, 005, 006, 007, 008 and 1 more")
    assert replace(study, table=many[:9]).tie_note.endswith("006, 007, 008")
    assert replace(study, objective=Objective(("a", "b"), ("max", "max"))).tie_note == ""


@pytest.mark.parametrize(
    ("front", "told"),
    [
        ([(4, 0.9, 1.0)], "the front has one point: trial 004 has the best value of each objective"),
        (
            [(4, 0.76, 2.0), (5, 0.92, 7.0)],
            "one of 2 points of the front, the nearest to the best value of each objective, in units of its spread "
            "over the front; as near, and later: 005, so the order of the trials decided",
        ),
        ([(3, 0.5, 1.0), (4, 0.8, 2.0), (5, 0.9, 10.0)], "in units of its spread over the front"),
        ([(4, 0.8, 2.0), (6, 0.8, 2.0)], "in units of its spread over the front"),
    ],
)
def test_front_note_says_why_a_trial_was_chosen(front: list[tuple[Any, ...]], told: str) -> None:
    """Of two points each is the best in one objective: they are equally far from the ideal one. 6 has the lr of 4."""
    goal = Objective(("val/L1/acc", "train/loss"), ("max", "min"))
    pareto = pd.DataFrame(front, columns=["trial", *goal.metrics])
    pareto["training.lr"] = [0.01 * (trial % 2 or 4) for trial in pareto["trial"]]
    study = Study("s", None, goal, {"training.lr": 0.04}, 4, {}, Experiment.of("fedavg"), pareto, pareto)
    assert study.front_note.endswith(told)
    assert Study("s", None, goal, {}, 4, {}, Experiment.of("fedavg"), pareto).front_note == ""
