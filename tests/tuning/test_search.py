"""A trial's reports and its end in Optuna, and the values in ASHA's rungs; without Ray running."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from optuna.trial import TrialState
from ray.tune.schedulers import TrialScheduler

from pfl_ops import spaces
from pfl_ops.jobs.early_stop import STOP, EarlyStop
from pfl_ops.jobs.report import Failure
from pfl_ops.tuning.session.search import Search
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies import study_storage as study_storages
from pfl_ops.tuning.studies.objective import Objective
from pfl_ops.tuning.studies.study_storage import StudyStorage

ONE = Objective(("val/L1/acc",), ("max",))
LOSS = Objective(("train/loss",), ("min",))
TWO = Objective(("val/L1/acc", "train/loss"), ("max", "min"))
SPACE = spaces.parse("algorithm.x: {float: [0, 1]}")


@pytest.fixture
def made(tmp_path):
    def make(objective=ONE, seed=0):
        study_storage = StudyStorage("s", study_database.storage(str(tmp_path / "s.log")), objective)
        return Search(study_storage, SPACE, objective, rounds=9, seed=seed)

    return make


def ask(search):
    return search.ask()[0]


def report(search, trial, round_, value):
    search.report(trial, {"round": round_, "val/L1/acc": value})


def end(search, trial, round_, **values):
    search.end(trial, {"round": round_, **{key.replace("_", "/"): value for key, value in values.items()}})
    return search.study_storage.study.trials[-1]


def test_values_stand_at_their_round_and_the_last_one_counts(made):
    """Ray's own searcher counts reports: two of them, at rounds 0 and 5, would stand at 1 and 2."""
    search = made()
    a, point = search.ask()
    assert 0 <= point["algorithm.x"] <= 1
    report(search, a, 0, 0.1)
    report(search, a, 5, 0.2)
    report(search, a, 5, 0.7)  # replayed: the first stays
    trial = end(search, a, 9, val_L1_acc=0.4)
    assert trial.intermediate_values == {0: 0.1, 5: 0.2, 9: 0.4}
    assert (trial.state, trial.value, trial.user_attrs["rounds"]) == (TrialState.COMPLETE, 0.4, 9)


def test_stepped_values_are_drawn_in_decimals(tmp_path):
    """0.1 + 2 x 0.1 is 0.30000000000000004, which is another experiment than 0.3. After three trials TPE draws.

    A trial that an earlier version drew goes on with its value.
    """
    space = spaces.parse("".join(f"algorithm.{name}: {{float: [0.1, 0.9], step: 0.1}}\n" for name in "xy"))
    study_storage = StudyStorage("s", study_database.storage(str(tmp_path / "s.log")), ONE)
    study_storage.study.enqueue_trial({"algorithm.x": 0.1 + 2 * 0.1, "algorithm.y": 0.7})
    search = Search(study_storage, space, ONE, rounds=1, seed=0, random_start=3)
    assert search.ask()[1] == {"algorithm.x": 0.30000000000000004, "algorithm.y": 0.7}
    drawn = set()
    for _ in range(40):
        trial, point = search.ask()
        end(search, trial, 1, val_L1_acc=0.5)
        assert study_storages.point_of(study_storage.study.trials[-1]) == point
        drawn |= set(point.values())
    assert drawn == {i / 10 for i in range(1, 10)}


def test_reports_that_follow_at_once_are_noted_later_and_none_is_lost(made, monkeypatch):
    """Values are recorded at once: the picture of a study that is cut short has them all."""
    now = [100.0]
    monkeypatch.setattr("pfl_ops.tuning.session.search.time.monotonic", lambda: now[0])
    search = made()
    cut, failed, slow = (ask(search) for _ in range(3))

    def rounds(trial):
        return search.study_storage.study.trials[trial.number].user_attrs["rounds"]

    for round_ in (1, 2, 3):
        for trial in (cut, failed):
            report(search, trial, round_, 0.1 * round_)
    assert rounds(cut) == rounds(failed) == 1
    assert search.study_storage.study.trials[cut.number].intermediate_values == {1: 0.1, 2: 0.2, 3: 0.1 * 3}
    for round_ in (1, 2):
        report(search, slow, round_, 0.5)
        now[0] += 1.0
    assert rounds(slow) == 2

    search.end(failed, {}, Failure("its process died"))
    search.close()
    assert (rounds(failed), rounds(cut)) == (3, 3)


def test_a_trial_stopped_early_is_pruned_not_complete(made):
    search = made()
    a = ask(search)
    trial = end(search, a, 3, val_L1_acc=0.9)
    assert (trial.state, trial.intermediate_values) == (TrialState.PRUNED, {3: 0.9})
    assert search.study_storage.best() == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_fails_the_trial(made, value):
    search = made()
    a = ask(search)
    report(search, a, 3, value)
    trial = end(search, a, 4, val_L1_acc=value)
    assert trial.state is TrialState.FAIL
    assert trial.user_attrs["error"] == f"val/L1/acc is {value} after round 4"


@pytest.mark.parametrize(
    ("losses", "note"),
    [
        ((2.3, 2.28), "training loss did not fall by 1 %: 2.3 in the first round, 2.28 in the last"),
        ((2.3, 2.31), "training loss did not fall by 1 %: 2.3 in the first round, 2.31 in the last"),
        ((2.3, 2.27), ""),
        ((2.3,), ""),
        ((), ""),
    ],
)
def test_a_trial_that_learnt_nothing_has_a_note(made, losses, note):
    search = made()
    a = ask(search)
    search.end(a, {"round": 9, "val/L1/acc": 0.1, "losses": losses})
    assert search.study_storage.table(["val/L1/acc"])["note"].tolist() == [note]
    assert search.study_storage.table(["val/L1/acc"])["state"].tolist() == ["complete"]


def test_a_diverged_trial_has_its_last_finite_value_and_is_never_chosen(made):
    search = made()
    a = ask(search)
    report(search, a, 3, 0.9)
    failure = Failure("diverged at round 4, client 2, lr 0.4", diverged=True)
    search.end(a, {"round": 3, "val/L1/acc": math.nan, "failure": str(failure)}, failure)
    table = search.study_storage.table(["val/L1/acc"])
    assert (table["state"][0], table["val/L1/acc"][0], table["error"][0]) == ("diverged", 0.9, failure.line)
    assert (
        search.study_storage.done() == 1
        and search.study_storage.chosen() is None
        and search.study_storage.curves() == {}
    )


@pytest.mark.parametrize(("last", "samples"), [
    ({}, 50),  # the process died twice, the second time before it told anything
    ({"round": 6, "val/L1/acc": math.nan, "samples": 60, "sent_bytes": 6.0}, 60),
])  # fmt: skip
def test_the_cost_of_a_trial_without_a_value_counts(made, last, samples):
    search = made()
    trial = ask(search)
    search.report(trial, {"round": 5, "val/L1/acc": 0.2, "samples": 50, "sent_bytes": 5.0})
    search.end(trial, last, None if last else Failure("its process died twice", died=True))
    assert search.study_storage.search_samples() == search.study_storage.table(ONE.metrics)["samples"][0] == samples


def test_the_first_reason_of_a_failure_stays(made):
    search = made()
    a = ask(search)
    search.end(a, {}, Failure("ValueError: no"))
    search.end(a, {}, Failure("again"))
    assert search.study_storage.study.trials[0].state is TrialState.FAIL
    assert search.study_storage.study.trials[0].user_attrs["error"] == "ValueError: no"


def test_an_end_without_a_report_is_a_failure(made):
    search = made()
    a = ask(search)
    search.end(a, {})
    assert search.study_storage.study.trials[0].user_attrs["error"] == "ended without a report"


def test_several_objectives_are_told_at_the_end_only(made):
    search = made(TWO)
    a = ask(search)
    search.report(a, {"round": 5, "val/L1/acc": 0.1, "train/loss": 2.0})
    assert end(search, a, 9, val_L1_acc=0.5, train_loss=1.0).values == [0.5, 1.0]
    assert end(search, ask(search), 5, val_L1_acc=0.5, train_loss=1.0).state is TrialState.FAIL


def test_a_resumed_study_does_not_propose_the_same_points_again(made):
    _, first = made(seed=3).ask()
    again = made(seed=3)
    assert again.ask()[1] != first
    assert again.study_storage.study.trials[1].number == 1


def stopping(curves=(), objective=ONE):
    """ASHA with rungs 1, 3 and 9, the end."""
    (metric,), (mode,) = objective.metrics, objective.modes
    return EarlyStop(metric, mode, 9, 1, curves)


def running(name, metrics=ONE.metrics):
    """A job as Ray has it."""
    return SimpleNamespace(trial_id=name, config={"job": SimpleNamespace(metrics=metrics)})


def fill(search):
    """Two trials with a result: 0.1, 0.5 at rounds 1, 3 (pruned); 0.2, 0.9 at 1, 4 and on to the end."""
    for values in ({1: 0.1, 3: 0.5}, {1: 0.2, 4: 0.9, 9: 1.0}):
        trial = ask(search)
        *before, (last, value) = values.items()
        for round_, v in before:
            report(search, trial, round_, v)
        end(search, trial, last, val_L1_acc=value)


def test_rungs_are_refilled_from_the_study(made):
    """Rungs 1, 3 (9 is the end). The report at round 4 fills rung 3, as in ASHA itself."""
    search = made()
    fill(search)
    failed = ask(search)
    report(search, failed, 1, 0.99)
    search.end(failed, {}, Failure("no"))
    rungs = stopping(search.study_storage.curves().values()).rungs
    assert [milestone for milestone, _ in rungs] == [9, 3, 1]  # the form that `EarlyStop.rungs` relies on
    assert [recorded for _, recorded in rungs][1:] == [
        {"earlier-0": 0.5, "earlier-1": 0.9},
        {"earlier-0": 0.1, "earlier-1": 0.2},
    ]


def test_a_refilled_rung_stops_a_bad_trial_and_not_a_good_one(made):
    search = made()
    fill(search)
    for value, expected in ((0.15, TrialScheduler.STOP), (0.3, TrialScheduler.CONTINUE)):
        scheduler = stopping(search.study_storage.curves().values())
        trial = running("new")
        scheduler.on_trial_add(None, trial)
        assert scheduler.on_trial_result(None, trial, {"round": 1, "val/L1/acc": value}) == expected


@pytest.mark.parametrize("sign", [1, -1])
def test_trials_end_at_the_rungs_as_the_page_says(sign):
    """Rungs 5 and 15 of 20 rounds: below the 66.7th percentile of the trials that were there before, docs/tuning.md."""
    draws = np.random.default_rng(0).normal(size=(60, 4)).cumsum(axis=1)
    scheduler, before, ends = EarlyStop("m", "max" if sign > 0 else "min", 20, 5), {5: [], 15: []}, []
    for number, scores in enumerate(draws):
        curve = dict(zip((5, 10, 15, 20), sign * scores, strict=True))
        trial = running(str(number))
        scheduler.on_trial_add(None, trial)
        stop = (t for t in (5, 10, 15) if scheduler.on_trial_result(None, trial, {"round": t, "m": curve[t]}) == STOP)
        end = next(stop, 20)
        if end == 20:
            scheduler.on_trial_complete(None, trial, {"round": 20, "m": curve[20]})
        expected = 20
        for rung, rivals in before.items():
            value = sign * curve[rung]
            is_worse = bool(rivals) and value < np.percentile(rivals, 200 / 3)
            rivals.append(value)
            if is_worse:
                expected = rung
                break
        ends.append((end, expected))
    assert all(end == expected for end, expected in ends) and {end for end, _ in ends} == {5, 15, 20}


def test_smaller_is_better_where_it_is():
    scheduler = stopping(objective=LOSS)
    decisions = []
    for name, value in (("a", 0.5), ("b", 0.9), ("c", 0.1)):
        trial = running(name)
        scheduler.on_trial_add(None, trial)
        decisions.append(scheduler.on_trial_result(None, trial, {"round": 1, "train/loss": value}))
    assert decisions == [TrialScheduler.CONTINUE, TrialScheduler.STOP, TrialScheduler.CONTINUE]


def test_a_trial_that_ends_without_a_value_is_no_rival():
    """It led at the first rung, and diverged; without it, the next one goes on."""
    scheduler = stopping()
    leader, other = (running(name) for name in "ab")
    for trial in (leader, other):
        scheduler.on_trial_add(None, trial)
    scheduler.on_trial_result(None, leader, {"round": 1, "val/L1/acc": 0.9})
    scheduler.on_trial_complete(None, leader, {"round": 3, "val/L1/acc": math.nan})
    assert all(not recorded for _, recorded in scheduler.rungs)


def test_a_failed_trial_is_no_rival():
    """It led at the first rung; without it, the next one goes on."""
    scheduler = stopping()
    leader, nan, other = (running(name) for name in "abc")
    for trial in (leader, nan, other):
        scheduler.on_trial_add(None, trial)
    scheduler.on_trial_result(None, leader, {"round": 1, "val/L1/acc": 0.9})
    scheduler.on_trial_error(None, leader)
    assert scheduler.on_trial_result(None, nan, {"round": 1, "val/L1/acc": math.nan}) == TrialScheduler.STOP
    scheduler.on_trial_complete(None, nan, {"round": 1, "val/L1/acc": math.nan})
    assert scheduler.on_trial_result(None, other, {"round": 1, "val/L1/acc": 0.1}) == TrialScheduler.CONTINUE
    assert scheduler.rungs[-1][1] == {"c": 0.1}


def test_a_job_that_is_no_trial_runs_to_its_end_and_is_no_rival():
    scheduler = stopping()
    leader, test = running("a"), running("b", metrics=())
    for job in (leader, test):
        scheduler.on_trial_add(None, job)
    scheduler.on_trial_result(None, leader, {"round": 1, "val/L1/acc": 0.9})
    assert scheduler.on_trial_result(None, test, {"round": 1}) == TrialScheduler.CONTINUE
    scheduler.on_trial_complete(None, test, {"round": 9})
    scheduler.on_trial_remove(None, test)
    assert [sorted(recorded) for _, recorded in scheduler.rungs] == [[], [], ["a"]]


def test_seconds_of_a_trial_are_those_of_its_run(made):
    """Optuna's time begins when the trial is proposed, before its process is started, and leaves out a kill."""
    search = made()
    trial = ask(search)
    search.keep_seconds(trial, 70.0)
    ended = end(search, trial, 9, val_L1_acc=0.4)
    assert study_storages.seconds_of(ended) == 70 == study_storages.longest_run(ended)
    several = ask(search)
    search.keep_parts(several, [{"seconds": 30.0}, {"seconds": 50.0}])  # of two runs
    ended = end(search, several, 9, val_L1_acc=0.3)
    assert (study_storages.seconds_of(ended), study_storages.longest_run(ended)) == (80, 50)
    assert search.study_storage.table(ONE.metrics)["seconds"].tolist() == [70, 80]


def test_a_seed_near_the_largest_one_proposes_trials(made):
    """Optuna's sampler takes seeds below 2³²; the number of trials so far is added to that of the experiment."""
    ask(made(seed=2**32 - 1))
    assert 0 <= made(seed=2**32 - 1).ask()[1]["algorithm.x"] <= 1
