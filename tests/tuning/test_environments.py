"""Studies in several environments: names, values by FedAvg's, the phases of jobs, tests, and whole studies."""

import math
import statistics
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fake_run import FakeRun
from tuning_fake import records, toy, tune

from pfl_ops import spaces
from pfl_ops.cli import study_page
from pfl_ops.config.experiment import Experiment
from pfl_ops.data import datasets
from pfl_ops.data.datasets import here
from pfl_ops.display import tables
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.report import Failure
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.tracking import Store
from pfl_ops.tuning import Study
from pfl_ops.tuning.commands.planning import study_plan
from pfl_ops.tuning.findings import presented
from pfl_ops.tuning.session.baselines import Baselines, scales_of
from pfl_ops.tuning.session.confirm import Confirmations
from pfl_ops.tuning.session.session import Session, _Phases
from pfl_ops.tuning.studies import settings as settings_module
from pfl_ops.tuning.studies import study_database, tested
from pfl_ops.tuning.studies import study_storage as study_storages
from pfl_ops.tuning.studies.environments import baseline, check_tests_apart, environments_of
from pfl_ops.tuning.studies.limits import StudyLimits
from pfl_ops.tuning.studies.parts import Combination, PartResult, TrialPart
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage
from pfl_ops.tuning.studies.tested import (
    CHOICE,
    FEDAVG,
    copies_notes,
    missing_notes,
    planned_tests,
    runs_table,
    summary,
)

METRIC = "val/L1/acc"
GOAL = "val/L1/acc/of_fedavg/mean"
SPACE = spaces.parse("algorithm.x: {float: [0, 1]}")
SPACE_LR = spaces.parse("training.lr: {float: [0.01, 0.1]}")
PATH_IID = {"environments": ["path", "iid"]}


def settings(**given):
    limits = StudyLimits(confirm=given.pop("confirm", None))
    return Settings.of(toy(), SPACE, limits, METRIC, **{**PATH_IID, **given})


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_study_s_own_run_shows_no_value_of_what_its_trials_vary():
    """MLflow had the default rate 0.05 beside the score of the best trial. A kind that varies has other fields, too,
    and a varied number of steps clears the epochs."""
    space = spaces.parse(
        "training.lr: {float: [0.01, 0.1]}\ntraining.local_steps: {int: [1, 9]}\n"
        "algorithm.gamma.kind: {choice: [fixed, adaptive]}"
    )
    experiment = Experiment.of("fliu", dataset="digits")
    shown = Settings.of(experiment, space).same_in_all
    left_out = {path for path in experiment.flat if path.startswith("algorithm.gamma.")}
    left_out |= {"training.lr", "training.local_steps", "training.local_epochs"}
    assert shown.keys() == experiment.flat.keys() - left_out and shown["training.batch_size"] == 50
    several = Settings.of(experiment, space, environments=["path", "participation.share=0.5"]).same_in_all
    gone = {path for path in shown if path.startswith("partition.")} | {"participation.share"}
    assert several.keys() == shown.keys() - gone


def test_environments_are_every_combination_of_names_and_values():
    base = toy()
    found = environments_of(base, ["path", "mnist"], {"participation.share": [0.5, 1.0]})
    assert [one.name for one in found] == [
        "path+participation.share=0.5", "path+participation.share=1.0",
        "mnist+participation.share=0.5", "mnist+participation.share=1.0",
    ]  # fmt: skip
    one = found[0].of(base)
    assert (one.partition.kind, one.participation.share, one.data.name) == ("path", 0.5, "digits")
    assert found[2].of(base).data.name == "mnist" and found[2].of(base).partition.kind == base.partition.kind
    assert environments_of(base, [], {"partition.alpha": [0.1, 0.5]})[1].of(base).partition.alpha == 0.5
    assert environments_of(base, [], {}) == ()


def test_another_data_set_has_the_network_recommended_for_it():
    """Unless the study has another one than is recommended for its own data."""
    usual, own = Experiment.of("fedavg", dataset="digits"), Experiment.of("fedavg", dataset="digits", model="linear")
    [mnist] = environments_of(usual, ["mnist"])
    assert mnist.of(usual).model.name == Experiment.of("fedavg", dataset="mnist").model.name != usual.model.name
    [mnist] = environments_of(own, ["mnist"])
    assert mnist.of(own).model.name == "linear"


def test_held_values_stay_in_environments_that_have_them():
    """`--alpha 0.3 --environments ls,dirichlet`: each had its partition's default, 1 and 0.1. `path` has no alpha."""
    base = Experiment.of("fedavg", dataset="digits", alpha=0.3)
    names = ["ls", "dirichlet", "ls+partition.alpha=0.5", "path"]
    made = Settings.of(base, SPACE_LR, environments=names, hold=["partition.alpha"], held_out=["zipf"])
    assert [getattr(e.partition, "alpha", None) for e in made.in_environments] == [0.3, 0.3, 0.5, None]
    assert made.held_out[0].of(made.experiment).partition.alpha == 0.3
    free = Settings.of(base, SPACE_LR, environments=names)  # a file's value is not held
    assert [getattr(e.partition, "alpha", None) for e in free.in_environments] == [1.0, 0.1, 0.5, None]


def test_network_given_by_hand_stays_on_other_data():
    """It is the one recommended for digits, so that MNIST had `cnn` in its place."""
    base = Experiment.of("fedavg", dataset="digits", model="cnn_tiny")
    for hold, model in ((["model.name"], "cnn_tiny"), ([], "cnn")):
        made = Settings.of(base, SPACE_LR, environments=["mnist"], hold=hold)
        assert [e.model.name for e in made.in_environments] == [model]


@pytest.mark.parametrize(
    ("path", "value", "given"),
    [
        ("partition.kind", "lsqs", {"environments": ["ls", "qs"]}),
        ("partition.alpha", 1.0, {"environments": ["path", "iid"]}),
        ("participation.share", 0.3, {"vary": {"participation.share": [0.5, 1.0]}}),
    ],
)
def test_held_value_in_no_environment_refused(path, value, given):
    base = Experiment.of("fedavg", dataset="digits").override({path: value})
    with pytest.raises(PflOpsError, match=f"{path}=.* is in none of the environments "):
        Settings.of(base, SPACE_LR, hold=[path], **given)
    assert Settings.of(base, SPACE_LR, **given).environments
    assert Settings.of(base, SPACE_LR, hold=["partition.kind"], environments=["lsqs", "ls"]).environments


def test_partition_of_pooled_data_is_fixed_in_each_environment():
    base = toy(seed=7)
    [pooled] = environments_of(base, [], {"data.pooled": [True]})
    assert pooled.of(base).partition.seed == 7


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("change", ["iid", "partition.clients=5", "data.test_share=0.5", "data.pooled=false"])
def test_pooled_data_divided_otherwise_are_refused(tmp_path, change, held_out):
    """286 of digits' 449 test samples in iid were training samples of trials in path, and 64 validation samples."""
    pooled = toy(**{"data.pooled": True, "partition.kind": "path"})
    given = {"environments": ["path"], "held_out": [change]} if held_out else {"environments": ["path", change]}
    with pytest.raises(PflOpsError, match=f"environments 'path' and '{change}' divide the pooled data otherwise"):
        tune(pooled, space=SPACE, home=tmp_path, **given)
    made = Settings.of(pooled, SPACE, **given)
    with pytest.raises(PflOpsError, match="divide the pooled data otherwise"):  # a dry run
        study_plan(
            pooled, made, 1, limits=StudyLimits(), name=None, resume=False, storage=None, data_dir=None,
            execution=Execution(), address=None,
        )  # fmt: skip


def test_pooled_data_divided_alike_are_accepted():
    """The same clients take part otherwise, the data are others, or the data have test sets of their own."""
    pooled = toy(**{"data.pooled": True})
    alike = [Settings.of(pooled, SPACE, vary={"participation.share": [0.5, 1.0]})]
    alike += [Settings.of(pooled, SPACE, environments=["digits", "mnist"]), settings(held_out=["qs"])]
    for one in alike:
        check_tests_apart(one.experiment, (*one.environments, *one.held_out))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"environments": ["pathh"]}, "no environment named 'pathh'. Did you mean 'path'?"),
        ({"environments": ["path", "path"]}, "environments 'path' and 'path' are the same"),
        ({"environments": ["lsqs", "partition.kind=lsqs"]}, "'lsqs' and 'partition.kind=lsqs' are the same"),
        ({"environments": ["path+iid"]}, "environment 'path+iid' sets partition.kind twice"),
        ({"environments": ["training.lr=1"]}, "it gives data.PATH, partition.PATH or participation.PATH a value"),
        ({"environments": ["path+partition.alpha=2"]}, "environment 'path+partition.alpha=2': partition 'path' has no"),
        ({"environments": ["participation.share=7"]}, "environment 'participation.share=7': participation.share"),
        ({"environments": "path,,iid"}, "environments needs names with commas between them"),
        ({"environments": [], "vary": {"partition.alpha": []}}, "--vary partition.alpha needs values"),
        ({"held_out": ["path"]}, "held-out environment 'path' is tuned on, too"),
        ({"held_out": ["qs", "qs"]}, "environments 'qs' and 'qs' are the same"),
        ({"environments": [], "held_out": ["qs"]}, "--held-out needs environments to tune on"),
        ({"environments": [], "aggregate": "worst"}, "--aggregate needs environments to tune on"),
        ({"aggregate": "best"}, "--aggregate must be mean or worst, got 'best'"),
        ({"scheduler": "asha"}, "a trial in 2 environments has a value only when all of its runs have ended"),
        ({"held_out": ["partition.clients=5000"]}, "environment 'partition.clients=5000': "),
        ({"environments": ["path"] * 3, "vary": {"partition.clients": range(2, 50)}}, "at most 100 environments"),
    ],
)
def test_environments_that_cannot_be_are_refused(tmp_path, given, message):
    with pytest.raises(PflOpsError) as caught:
        tune(toy(), space=SPACE, home=tmp_path, **{**PATH_IID, **given})
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert study_storages.recorded(study_database.storage(f"sqlite:///{tmp_path}/studies.db")) == {}
    assert not (tmp_path / "mlflow.db").exists()


# -- settings ---------------------------------------------------------------------------------------------------------


def test_environments_are_recorded_and_part_of_the_digest(monkeypatch):
    one = settings(seeds_per_trial=2, held_out=["qs"], aggregate="worst")
    assert Settings.from_dict(one.as_dict()) == one and one.scheduler == "none"
    assert one.goal.metrics == ("val/L1/acc/of_fedavg/worst",) and one.objective.metrics == (METRIC,)
    assert one.combination.parts == (
        TrialPart(0, "path"), TrialPart(0, "iid"), TrialPart(1, "path"), TrialPart(1, "iid")
    )  # fmt: skip
    others = [
        settings(seeds_per_trial=2, held_out=["qs"]),
        settings(seeds_per_trial=2, aggregate="worst"),
        settings(held_out=["qs"], aggregate="worst"),
        Settings.of(toy(), SPACE, metric=METRIC, scheduler="none"),
    ]
    assert len({each.digest(None) for each in (one, *others)}) == 5
    before = one.digest(None)
    monkeypatch.setattr(settings_module, "baseline", lambda here: baseline(here).override({"training.lr": 0.5}))
    assert one.digest(None) != before, "scores are divided by those of FedAvg's defaults"
    assert one.difference(others[0]) == "--aggregate worst, not mean"
    assert one.difference(others[1]) == "--held-out qs, not none"
    assert one.difference(others[3]) == "--seeds-per-trial 2, not 1"


def test_paths_that_environments_set_are_not_varied():
    space = spaces.parse("algorithm.x: {float: [0, 1]}\nparticipation.share: {float: [0.1, 1]}")
    made = Settings.of(toy(), space, metric=METRIC, vary={"participation.share": [0.5, 1.0]})
    assert list(made.space.keys) == ["algorithm.x"]


def test_baseline_is_fedavg_with_default_settings():
    tuned = Experiment.of(
        "fliu", dataset="digits", partition="path", rounds=7, seed=3, lr=0.5, optimiser="adam", local_epochs=4,
        **{"evaluation.split": "validation", "participation.share": 0.5},
    )  # fmt: skip
    found = baseline(tuned)
    assert (found.algorithm.name, found.training.rounds, found.seed) == ("fedavg", 7, 3)
    for section in ("data", "partition", "model", "participation", "evaluation"):
        assert getattr(found, section) == getattr(tuned, section)
    usual = Experiment.of("fedavg", dataset="digits").training
    assert found.training == usual.model_copy(update={"rounds": 7})


# -- the value --------------------------------------------------------------------------------------------------------


def results(**scores):
    """{environment: scores of seeds 0 and 1} as results, in the order in which they end."""
    return [
        PartResult(TrialPart(seed, name), {METRIC: value}, {METRIC: 0.01}, samples=10, rounds=9)
        for seed in (1, 0)
        for name, values in scores.items()
        for value in [values[seed]]
    ]


@pytest.mark.parametrize(
    ("aggregate", "mode", "value", "seeds", "counted"),
    [
        ("mean", "max", (1.25 + 0.75) / 2, [(1.0 + 0.5) / 2, (1.5 + 1.0) / 2], ("path", "iid")),
        ("worst", "max", 0.75, [0.5, 1.0], ("iid",)),
        ("worst", "min", 1.25, [1.0, 1.5], ("path",)),
    ],
)
def test_value_in_environments_is_the_mean_or_the_worst(aggregate, mode, value, seeds, counted):
    """FedAvg: 0.4 in path, 0.8 in iid. Choice: path 0.4 and 0.6 (1.0 and 1.5 of FedAvg's), iid 0.4 and 0.8 (0.5 and 1).
    Errors of 0.01: 0.025 of FedAvg's in path, 0.0125 in iid."""
    parts = tuple(TrialPart(seed, name) for seed in (0, 1) for name in ("path", "iid"))
    scales = {"path": {METRIC: 0.4}, "iid": {METRIC: 0.8}}
    combination = Combination(parts, (METRIC,), (GOAL,), (mode,), aggregate, scales)
    found = combination.report(results(path=(0.4, 0.6), iid=(0.4, 0.8)))
    assert found[GOAL] == pytest.approx(value)
    assert found["stds"] == {GOAL: pytest.approx(statistics.stdev(seeds))}
    assert found["scores"] == {GOAL: {"path": pytest.approx(1.25), "iid": pytest.approx(0.75)}}
    relative = [{"path": 0.025, "iid": 0.0125}[name] for name in counted for _ in range(2)]
    assert found["errors"] == {GOAL: pytest.approx(math.hypot(*relative) / len(relative))}
    assert found["samples"] == 40


# -- phases -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path):
    """Open a session on one study of two environments again and again, as processes do that are killed."""
    address = str(tmp_path / "s.log")

    def start(**given):
        chosen = settings(**given)
        study_storage = StudyStorage("s", study_database.storage(address), chosen.goal, {"digest": "d"})
        runs = {}
        store = SimpleNamespace(
            run=lambda experiment, name, **_: runs.setdefault(name, FakeRun()), rerun_of=lambda *_: ""
        )
        made = Session(chosen, study_storage, store, SimpleNamespace(experiment="e"), None, Execution(), None, None)
        made.runs = runs
        return made

    return start


def play(source, value, most=99, failure=lambda job: None):
    """Run a source's jobs, two at a time; returns (seed, partition) of those that ended. `most`: then a kill."""
    running, ended = [], []
    while len(ended) < most:
        while len(running) < 2 and (job := source.next()) is not None:
            source.take(JobEvent("started", job))
            running.append(job)
        if not running:
            break
        job = running.pop(0)
        broken = failure(job)
        if not broken:
            record = Record(9, {METRIC: value(job), "val/L1/global/se": 0.01}, 0)
            source.take(JobEvent("rounds", job, (record,), {"round": 9}))
        source.take(JobEvent("ended", job, report={"samples": 10}, failure=broken))
        ended.append((job.experiment.seed, job.experiment.partition.kind))
    return ended


def fedavg_scores(job):
    return {"path": 0.4, "iid": 0.8}[job.experiment.partition.kind] + 0.1 * job.experiment.seed


def baselines_of(session):
    return Baselines(session, ResourceShare(1.0, 0.0, 2), Execution())


def test_fedavg_is_run_once_in_each_environment_with_each_seed(session):
    """0.4 and 0.5 in path, 0.8 and 0.9 in iid."""
    one = session(seeds_per_trial=2)
    source = baselines_of(one)
    jobs = [source.next() for _ in range(4)]
    assert {job.purpose for job in jobs} == {"baseline"} and all(job.payload.sealed for job in jobs)
    assert {job.experiment.algorithm.name for job in jobs} == {"fedavg"} and source.next() is None and not source.over
    again = baselines_of(one)
    assert play(again, fedavg_scores) == [(0, "path"), (0, "iid"), (1, "path"), (1, "iid")] and again.over
    assert scales_of(one) == {"path": {METRIC: pytest.approx(0.45)}, "iid": {METRIC: pytest.approx(0.85)}}
    assert one.study_storage.search_samples() == 40, "they count in --samples"
    assert {run.status for run in one.runs.values()} == {"FINISHED"}
    assert one.combination.scales == scales_of(one)


@pytest.mark.parametrize("kills", [(1,), (2,), (1, 1, 1)])
def test_after_a_kill_no_run_of_fedavg_is_lost_or_repeated(session, kills):
    ended = []
    for most in kills:
        ended += play(baselines_of(session(seeds_per_trial=2)), fedavg_scores, most)
    last = session(seeds_per_trial=2)
    ended += play(baselines_of(last), fedavg_scores)
    assert sorted(ended) == sorted((seed, name) for seed in (0, 1) for name in ("path", "iid"))
    assert baselines_of(last).over and scales_of(last)["path"] == {METRIC: pytest.approx(0.45)}


@pytest.mark.parametrize(
    ("value", "failure", "line"),
    [
        (0.0, None, "FedAvg in path, seed 0: val/L1/acc is 0, so that"),
        (math.nan, None, "val/L1/acc is nan"),
        (0.5, Failure("diverged at round 4", diverged=True), "FedAvg in path, seed 0: diverged at round 4, so that"),
        (0.5, Failure("its process died twice", died=True), "run it again with --resume"),
    ],
)
def test_fedavg_without_a_score_ends_the_study(session, value, failure, line):
    one = session()
    source = baselines_of(one)
    play(source, lambda job: value, failure=lambda job: failure)
    assert not source.over and source.next() is None
    with pytest.raises(PflOpsError) as caught:
        source.check()
    assert line in str(caught.value) and "can't be divided by its score" in str(caught.value)
    assert one.runs["baseline-seed0 path"].status == "FAILED" and not one.study_storage.baselines()


def test_trials_wait_for_fedavg_and_get_its_scores(session):
    one = session()
    source = baselines_of(one)
    trials = SimpleNamespace(next=lambda: "trial", combination=None)
    phases = _Phases(None, None, trials, None, source)
    jobs = [phases.next(), phases.next()]
    assert phases.next() is None and trials.combination is None
    for job in jobs:
        phases.take(JobEvent("started", job))
        phases.take(JobEvent("rounds", job, (Record(9, {METRIC: fedavg_scores(job)}, 0),), {"round": 9}))
        phases.take(JobEvent("ended", job, report={"samples": 10}))
    assert phases.next() == "trial"
    assert trials.combination.scales == {"path": {METRIC: 0.4}, "iid": {METRIC: 0.8}}


@pytest.fixture
def confirmed(session):
    """Open the confirmation of a study of two trials: x = 0.5 and then 0.75; FedAvg has 0.4 and 0.8."""

    def start():
        one = session(confirm=3)
        if not one.study_storage.baselines():
            play(baselines_of(one), fedavg_scores)
            for x, value in ((0.5, 1.2), (0.75, 1.1)):
                trial = one.study_storage.study.ask()
                trial.suggest_float("algorithm.x", x, x)
                one.study_storage.study.tell(trial, value)
        return one, Confirmations(one, ResourceShare(1, 0, 2), Execution())

    return start


def new_scores(job):
    """x = 0.75 is better in path by far, and a little worse in iid."""
    x, path = job.experiment.algorithm.x, job.experiment.partition.kind == "path"
    noise = 0.0001 * ((7 * job.experiment.seed + int(12 * x)) % 5)
    return ({0.5: 0.4, 0.75: 0.6} if path else {0.5: 0.8, 0.75: 0.72})[x] + noise


@pytest.mark.parametrize("kills", [(), (3,), (1, 4, 2)])
def test_choice_is_confirmed_in_every_environment(confirmed, kills):
    """Ratios of x = 0.5: 1 and 1; of 0.75: 1.5 and 0.9, mean 1.2. Errors: 0.025 and 0.0125 of FedAvg's scores."""
    ended = []
    for most in kills:
        ended += play(confirmed()[1], new_scores, most)
    source = confirmed()[1]
    ended += play(source, new_scores)
    wanted = [(seed, name) for seed in (1000, 1001, 1002) for _ in range(2) for name in ("path", "iid")]
    assert sorted(ended) == sorted(wanted), "none lost, none repeated"
    found = source.result
    assert found.winner == 1 and found.changed and found.separated and found.metric == GOAL
    assert found.means == pytest.approx({0: 1.0, 1: 1.2}, abs=0.002)
    assert found.standard_error == pytest.approx(math.hypot(0.025, 0.0125) / 2 / 3**0.5)
    again = confirmed()[1]
    again.plan()
    assert again.over and str(again.result) == str(found)


def test_configuration_that_diverges_in_one_environment_is_out(confirmed):
    def failure(job):
        lost = (job.experiment.seed, job.experiment.partition.kind, job.experiment.algorithm.x) == (1000, "iid", 0.75)
        return Failure("diverged at round 4", diverged=True) if lost else None

    _, source = confirmed()
    play(source, new_scores, failure=failure)
    assert source.result.winner == 0 and source.result.lost == {1: "iid, seed 1000 diverged at round 4"}


# -- tests ------------------------------------------------------------------------------------------------------------


def test_choice_and_fedavg_are_tested_in_all_environments():
    made = settings(held_out=["qs"])
    planned = planned_tests(made, {"algorithm.x": 0.25}, 2, None)
    assert [(t.environment, t.held_out, t.roles, t.experiment.seed) for t in planned] == [
        (name, name == "qs", (role,), seed)
        for name in ("path", "iid", "qs")
        for role in (CHOICE, FEDAVG)
        for seed in (0, 1)
    ]
    assert {t.experiment.evaluation.split for t in planned} == {"test"}
    assert [t.experiment.algorithm.name for t in planned[:3]] == ["toy", "toy", "fedavg"]
    assert planned[0].label == "path" and planned[2].label == "path fedavg"


def test_choice_that_is_fedavg_s_default_is_tested_once():
    experiment = Experiment.of("fedavg", dataset="digits", rounds=2)
    space = spaces.parse("training.lr: {float: [0.01, 0.1]}")
    made = Settings.of(experiment, space, environments=["path"], held_out=["iid"])
    planned = planned_tests(made, {"training.lr": 0.05}, 1, None)
    assert [(t.environment, t.roles) for t in planned] == [("path", (CHOICE, FEDAVG)), ("iid", (CHOICE, FEDAVG))]


def test_tables_of_tests_in_environments():
    """Held out: the choice 0.6 and 0.8, FedAvg 0.5 and 0.5, ratio 1.4. Of path a test of the choice diverged."""
    made = settings(environments=["path"], held_out=["qs"])
    planned = planned_tests(made, {"algorithm.x": 0.25}, 2, None)
    key = "final/test/L1/acc"
    scores = [0.9, None, 0.6, 0.6, 0.6, 0.8, 0.5, 0.5]
    outcomes = [
        "diverged at round 3" if score is None else SimpleNamespace(final={key: score}, run_id="r") for score in scores
    ]
    tests = runs_table(planned, outcomes, [METRIC])
    assert tests["test/L1/acc"].dropna().tolist() == [0.9, 0.6, 0.6, 0.6, 0.8, 0.5, 0.5]
    assert tests["error"].tolist()[1] == "diverged at round 3"
    table = summary(made, {"path": {METRIC: 0.5}}, {GOAL: {"path": 1.2}}, tests)
    path, qs = table.to_dict("records")
    assert (path["fedavg"], path["choice"], path["ratio"]) == (0.5, pytest.approx(0.6), 1.2)
    assert math.isnan(path["choice_test"]) and path["fedavg_test"] == pytest.approx(0.6)
    assert qs["held_out"] and math.isnan(qs["choice"]) and qs["ratio_test"] == pytest.approx(1.4)
    assert qs["choice_std"] == pytest.approx(0.02**0.5) and qs["n"] == 2
    shown = tables.environments(table)
    assert shown.rows[1] == ("qs (held out)", "–", "–", "–", "50.0 ± 0.0 %", "70.0 ± 14.1 %", "1.400")
    assert shown.title == "environments, Acc(L)+Acc(G), test: mean ± std of 2 seeds"
    closed = summary(made, {"path": {METRIC: 0.5}}, {GOAL: {"path": 1.2}}, runs_table([], [], [METRIC]))
    assert tables.environments(closed).rows[0] == ("path", "50.0 %", "60.0 %", "1.200", "–", "–", "–")
    assert "test data closed" in tables.environments(closed).title


# -- a whole study ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_study_in_two_environments_on_the_real_engine(home, cache, monkeypatch):
    """Digits. While FedAvg, trials and the confirmation run, the test data are not there; then they are opened once."""
    monkeypatch.setenv("PFL_OPS_CACHE", str(cache))
    experiment = Experiment.of("fedprox", model="linear", rounds=2, local_steps=2, seed=3, **{"data.train_size": 300})
    given = {"space": spaces.parse("training.lr: {float: [0.01, 0.2]}"), "home": home, "name": "environments"}
    given |= {**PATH_IID, "held_out": ["ls"], "trials": 2, "seeds_per_trial": 2, "gpus_per_trial": 0, "confirm": 1}
    kept = {file: file.read_bytes() for file in datasets.load("digits").files.folder.glob("*_test.npy")}
    assert len(kept) == 2
    for file in kept:
        file.unlink()
    try:
        closed = tune(experiment, **given, final_repetitions=0)
    finally:
        for file, content in kept.items():
            file.write_bytes(content)
    assert closed.openings == 0 and closed.tests.empty and closed.table["state"].tolist() == ["complete"] * 2
    study = tune(experiment, **given, final_repetitions=2)
    assert study.openings == 1 and study.table.equals(closed.table)

    with Store.open(home) as store:
        runs = store.runs("environments")
        parent = next(run for run in runs if run.name == "study")
        kept_table = pd.read_csv(store.download(parent.run_id, "environments.csv"))
    scores = {}
    for run in runs:
        who = run.tags.get("pfl_ops.trial") or run.tags.get("pfl_ops.baseline")
        if who:
            scores[who, run.tags["pfl_ops.environment"], int(run.params["seed"])] = run.metrics[METRIC]
    assert len(scores) == 4 + 2 * 4
    scale = {name: statistics.fmean(scores["fedavg", name, seed] for seed in (3, 4)) for name in ("path", "iid")}
    kept_baselines = study.baselines.set_index(["environment", "seed"])[METRIC].to_dict()
    assert kept_baselines == pytest.approx({key[1:]: value for key, value in scores.items() if key[0] == "fedavg"})
    kept_parts = study.parts.set_index(["trial", "environment", "seed"])[METRIC].to_dict()
    assert {(f"trial-{t:03d}", name, seed): value for (t, name, seed), value in kept_parts.items()} == pytest.approx(
        {key: value for key, value in scores.items() if key[0] != "fedavg"}
    )
    assert study.baseline_note.startswith("FedAvg on validation data: 4 runs, ") and study.baselines["samples"].all()
    for row in study.table.to_dict("records"):
        ratios = {
            (name, seed): scores[f"trial-{row['trial']:03d}", name, seed] / scale[name]
            for name in scale
            for seed in (3, 4)
        }
        assert row[GOAL] == pytest.approx(statistics.fmean(ratios.values()))
        assert row[f"{GOAL}/path"] == pytest.approx((ratios["path", 3] + ratios["path", 4]) / 2)
        by_seed = [statistics.fmean(ratios[name, seed] for name in scale) for seed in (3, 4)]
        assert row[f"{GOAL}/std"] == pytest.approx(statistics.stdev(by_seed))
    assert study.confirmation.metric == GOAL and study.confirmation.table["seed"].tolist() == [1003] * 2

    table = study.environments.set_index("environment")
    assert table.index.tolist() == ["path", "iid", "ls"] and table["held_out"].tolist() == [False, False, True]
    assert table["fedavg"].to_dict() == pytest.approx({**scale, "ls": math.nan}, nan_ok=True)
    finals = {run.name: run.metrics["final/test/L1/acc"] for run in runs if run.tags["pfl_ops.kind"] == "final"}
    assert len(finals) == 3 * 2 * 2
    for who, column in (("ls", "choice_test"), ("ls fedavg", "fedavg_test")):
        assert table[column]["ls"] == pytest.approx((finals[f"final-seed3 {who}"] + finals[f"final-seed4 {who}"]) / 2)
    assert kept_table["environment"].tolist() == ["path", "iid", "ls"]
    assert "- ls (held out): `test/L1/acc` " in parent.tags["mlflow.note.content"]
    assert (parent.tags["dataset"], parent.tags["partition"]) == ("digits", "path, iid")
    assert [one.partition.kind for one in study.in_environments] == ["path", "iid"]
    assert "ls (held out)" in study._repr_html_() and study.finals == [] and study.diverged == {}

    read = tune(None, name="environments", resume=True, home=home, final_repetitions=2)
    assert read.openings == 1 and read.environments.equals(study.environments)
    with pytest.raises(PflOpsError, match="a study keeps the environments that it was begun with"):
        tune(None, name="environments", resume=True, home=home, **PATH_IID)
    with pytest.raises(PflOpsError, match=r"other settings \(now --held-out qs, not ls\)"):
        tune(experiment, **{**given, "held_out": ["qs"]}, resume=True)


@pytest.mark.usefixtures("one_ray")
def test_budget_that_fedavg_spends_is_named(home):
    """2 environments, 9 rounds of 10 samples. The line was "no trial was completed (0 without a result)"."""
    with pytest.raises(
        PflOpsError, match="FedAvg's runs in the environments count: search ended by --samples 100: 180"
    ):
        tune(toy(), space=SPACE, **PATH_IID, records=records, samples=100, home=home, name="too-few")


def test_diverged_tests_in_environments_are_told():
    error = "diverged at round 2"
    tests = pd.DataFrame(
        {"environment": ["ls"], "role": ["fedavg"], "seed": [3], "test/L1/acc": [math.nan], "error": [error]}
    )
    table = pd.DataFrame({"trial": [0], "state": ["complete"], GOAL: [1.1]})
    study = Study("s", None, settings().goal, {}, 0, {GOAL: 1.1}, toy(), table, tests=tests)
    assert study.environment_notes == ("test run of FedAvg in ls with seed 3: diverged at round 2",)
    assert replace(study, tests=None).environment_notes == () and study.baseline_note == ""

    row = {"environment": "ls", "held_out": True, "metric": METRIC, "choice_test": 0.5, "fedavg_test": math.nan, "n": 2}
    told: list[str] = []
    parent = SimpleNamespace(set_metrics=lambda *_: None, note=told.append)
    presented.end(parent, replace(study, environments=pd.DataFrame([row])), "trials")
    assert (
        "- ls (held out): `test/L1/acc` 0.5000, FedAvg no mean\n- test run of FedAvg in ls with seed 3: div" in told[0]
    )


def test_page_has_what_trials_share_in_each_environment():
    """The study's own data, digits, are in no environment; its partition is in both."""
    made = settings(environments=["mnist", "fashion_mnist+partition.clients=5"], held_out=["mnist+iid"])
    tests = runs_table([], [], [METRIC])
    trials = pd.DataFrame({"trial": [0], "state": ["complete"], "rounds": [9], GOAL: [1.1], "seconds": [1.0]})
    trials = trials.assign(error="", note="")
    study = Study(
        "s", None, made.goal, {}, 0, {GOAL: 1.1}, toy(), trials, tests=tests,
        environments=summary(made, {}, {}, tests), in_environments=tuple(made.in_environments),
    )  # fmt: skip
    shared = dict(study_page.page(study).sections[-1].blocks[0].items)
    assert shared["environments"] == "mnist, fashion_mnist+partition.clients=5; held out: mnist+iid"
    named = {term: [text.partition(":")[0] for text in shared[term].split("; ")] for term in ("data", "partition")}
    assert named["data"] == ["mnist, at most 12,000 training samples", "fashion_mnist, at most 12,000 training samples"]
    assert named["partition"] == ["lsqs, 20 clients", "lsqs, 5 clients"]


def test_a_dash_in_a_test_column_has_its_cause():
    """One of two finished test runs has no pooled accuracy, so that the choice has no mean there; no test run has a
    loss. The line stands below the table on screen, page, in LaTeX, notebooks and MLflow."""
    made = settings(environments=["path"], held_out=["qs"])
    planned = planned_tests(made, {"algorithm.x": 0.25}, 2, None)
    key = "final/test/L1/acc"
    finals = [{key: 0.9}, {}, {key: 0.6}, {key: 0.6}, {key: 0.6}, {key: 0.8}, {}, {}]
    outcomes = [SimpleNamespace(final=final, run_id="r") for final in finals]
    tests = runs_table(planned, outcomes, [METRIC, "train/loss"])
    line = "no value of test/L1/acc: the choice in path (1 of 2 test runs), FedAvg in qs (2 of 2 test runs)"
    loss = "no value of train/loss on test data: a test run has scores, no loss and no costs"
    assert missing_notes(tests, [METRIC, "train/loss"]) == (line, loss)

    table = summary(made, {"path": {METRIC: 0.5}}, {GOAL: {"path": 1.2}}, tests)
    assert table["choice_test"].isna().tolist() == [True, False]
    trials = pd.DataFrame({"trial": [0], "state": ["complete"], "rounds": [9], GOAL: [1.1], "seconds": [1.0]})
    study = Study("s", None, made.goal, {}, 0, {GOAL: 1.1}, toy(), trials, tests=tests, environments=table)
    assert study.missing_notes == (line,) and study.environment_notes == ()
    assert line in study._repr_html_()
    [shown] = [block for block in study_page._chosen(study) if getattr(block, "name", "") == "environments"]
    assert shown.notes == (line,)
    told: list[str] = []
    presented.end(SimpleNamespace(set_metrics=lambda *_: None, note=told.append), study, "trials")
    assert f"- {line}" in told[0]


@pytest.mark.skipif(not here("mnist"), reason="MNIST is not here, whose content a run's hash needs")
def test_copies_among_test_samples_name_their_environments(monkeypatch):
    """`path` and `iid` have the study's data, digits; in `mnist` no test sample has a training sample's values."""
    remarks = {"digits": "5 of 40 test samples have the values of a training sample", "mnist": ""}
    monkeypatch.setattr(tested, "load", lambda data, data_dir: data.name)
    monkeypatch.setattr(tested, "copies_remark", lambda dataset, split: remarks[dataset])
    several = planned_tests(settings(held_out=["mnist"]), {"algorithm.x": 0.25}, 1, None)
    assert copies_notes(several, None) == (f"path, iid: {remarks['digits']}",)
    alike = planned_tests(settings(), {"algorithm.x": 0.25}, 1, None)
    assert copies_notes(alike, None) == (remarks["digits"],)
    assert copies_notes([], None) == ()
    study = SimpleNamespace(finals=[], copies=copies_notes(alike, None))
    assert Study.test_data_notes.func(study) == (remarks["digits"],)


def test_notes_on_the_data_of_tests_are_those_of_the_test_split(tmp_path):
    """Client 2 has test samples alone, which no trial tells: trials never see test data."""
    x, one = np.arange(12, dtype=np.float32)[:, None], np.arange(12) % 2
    owners = {"client_train": np.arange(12) % 2, "client_test": np.arange(12) % 3}
    np.savez(tmp_path / "own.npz", x_train=x, y_train=one, x_test=x + 100, y_test=one, **owners)
    experiment = Experiment.of("fedavg", dataset=tmp_path / "own.npz", model="linear", rounds=1)
    told = "4 of 12 test samples are left out: they belong to 1 client without training samples"
    study = SimpleNamespace(finals=[SimpleNamespace(data_dir=None)], experiment=experiment)
    assert Study.test_data_notes.func(study) == (told,)
    assert Study.test_data_notes.func(SimpleNamespace(finals=[], copies=())) == ()
    (tmp_path / "own.npz").unlink()  # the tests were read, and their data are not here
    assert Study.test_data_notes.func(study) == ()
