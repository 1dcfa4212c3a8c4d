"""How a trial's reports and its end reach Optuna, and what fills ASHA's rungs; without Ray running."""

import math
from types import SimpleNamespace

import pytest
from optuna.trial import TrialState
from ray.tune.schedulers import TrialScheduler

from pfl_ops import spaces
from pfl_ops.tuning import ledger as ledgers
from pfl_ops.tuning.ledger import Ledger
from pfl_ops.tuning.objective import Objective
from pfl_ops.tuning.search import Rungs, StudySearch, asha
from pfl_ops.tuning.trial import Failure

ONE = Objective(("val/L1/acc",), ("max",))
LOSS = Objective(("train/loss",), ("min",))
TWO = Objective(("val/L1/acc", "train/loss"), ("max", "min"))
SPACE = spaces.parse("algorithm.x: {float: [0, 1]}")


@pytest.fixture
def made(tmp_path):
    def make(objective=ONE, seed=0):
        ledger = Ledger("s", ledgers.storage(str(tmp_path / "s.log")), objective)
        return StudySearch(ledger, SPACE, objective, rounds=9, seed=seed)

    return make


def report(search, trial, round_, value):
    search.on_trial_result(trial_id=trial, result={"round": round_, "val/L1/acc": value})


def end(search, trial, round_, **values):
    result = {"round": round_, **{key.replace("_", "/"): value for key, value in values.items()}}
    search.on_trial_complete(trial_id=trial, result=result, error=False)
    return search.ledger.study.trials[-1]


def test_values_stand_at_their_round_and_the_last_one_counts(made):
    """Ray's own searcher counts reports: two of them, at rounds 0 and 5, would stand at 1 and 2."""
    search = made()
    assert 0 <= search.suggest("a")["algorithm.x"] <= 1
    report(search, "a", 0, 0.1)
    report(search, "a", 5, 0.2)
    report(search, "a", 5, 0.7)  # replayed: the first stays
    trial = end(search, "a", 9, val_L1_acc=0.4)
    assert trial.intermediate_values == {0: 0.1, 5: 0.2, 9: 0.4}
    assert (trial.state, trial.value, trial.user_attrs["rounds"]) == (TrialState.COMPLETE, 0.4, 9)


def test_a_trial_stopped_early_is_pruned_not_complete(made):
    search = made()
    search.suggest("a")
    trial = end(search, "a", 3, val_L1_acc=0.9)
    assert (trial.state, trial.intermediate_values) == (TrialState.PRUNED, {3: 0.9})
    assert search.ledger.best() == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_fails_the_trial(made, value):
    search = made()
    search.suggest("a")
    report(search, "a", 3, value)
    trial = end(search, "a", 4, val_L1_acc=value)
    assert trial.state is TrialState.FAIL
    assert trial.user_attrs["error"] == f"val/L1/acc is {value} after round 4"


@pytest.mark.parametrize(
    ("losses", "note"),
    [
        ((2.3, 2.28), "training loss did not fall: 2.3 in the first round, 2.28 in the last"),
        ((2.3, 2.31), "training loss did not fall: 2.3 in the first round, 2.31 in the last"),
        ((2.3, 2.27), ""),
        ((2.3,), ""),
        ((), ""),
    ],
)
def test_a_trial_that_learnt_nothing_has_a_note(made, losses, note):
    search = made()
    search.suggest("a")
    search.on_trial_complete(trial_id="a", result={"round": 9, "val/L1/acc": 0.1, "losses": losses})
    assert search.ledger.table(["val/L1/acc"])["note"].tolist() == [note]
    assert search.ledger.table(["val/L1/acc"])["state"].tolist() == ["complete"]


def test_a_diverged_trial_has_its_last_finite_value_and_is_never_chosen(made):
    search = made()
    search.suggest("a")
    report(search, "a", 3, 0.9)
    failure = Failure("diverged at round 4, client 2, lr 0.4", diverged=True)
    search.on_trial_complete(trial_id="a", result={"round": 3, "val/L1/acc": math.nan, "failure": str(failure)})
    table = search.ledger.table(["val/L1/acc"])
    assert (table["state"][0], table["val/L1/acc"][0], table["error"][0]) == ("diverged", 0.9, failure.line)
    assert search.ledger.done() == 1 and search.ledger.chosen() is None and search.ledger.curves() == {}


def test_an_error_is_recorded_by_who_knows_it(made):
    search = made()
    search.suggest("a")
    search.on_trial_complete(trial_id="a", error=True)  # Ray says no more than that
    assert search.ledger.study.trials[0].state is TrialState.RUNNING
    search.fail("a", "ValueError: no")
    search.fail("a", "again")
    assert search.ledger.study.trials[0].state is TrialState.FAIL
    assert search.ledger.study.trials[0].user_attrs["error"] == "ValueError: no"


def test_an_end_without_a_report_is_a_failure(made):
    search = made()
    search.suggest("a")
    search.on_trial_complete(trial_id="a", result={}, error=False)
    assert search.ledger.study.trials[0].user_attrs["error"] == "ended without a report"


def test_several_objectives_are_told_at_the_end_only(made):
    search = made(TWO)
    search.suggest("a")
    search.on_trial_result(trial_id="a", result={"round": 5, "val/L1/acc": 0.1, "train/loss": 2.0})
    assert end(search, "a", 9, val_L1_acc=0.5, train_loss=1.0).values == [0.5, 1.0]
    search.suggest("b")
    assert end(search, "b", 5, val_L1_acc=0.5, train_loss=1.0).state is TrialState.FAIL


def test_a_resumed_study_does_not_propose_the_same_points_again(made):
    first = made(seed=3).suggest("a")
    again = made(seed=3)
    assert again.suggest("b") != first
    assert again.ledger.study.trials[1].number == 1


def fill(search):
    """Two trials with a result: 0.1, 0.5 at rounds 1, 3 (pruned); 0.2, 0.9 at 1, 4 and on to the end."""
    for name, values in (("a", {1: 0.1, 3: 0.5}), ("b", {1: 0.2, 4: 0.9, 9: 1.0})):
        search.suggest(name)
        *before, (last, value) = values.items()
        for round_, v in before:
            report(search, name, round_, v)
        end(search, name, last, val_L1_acc=value)


def test_rungs_are_refilled_from_the_study(made):
    """Rungs 1, 3 (9 is the end). The report at round 4 fills rung 3, as in ASHA itself."""
    search = made()
    fill(search)
    search.suggest("failed")
    report(search, "failed", 1, 0.99)
    search.fail("failed", "no")
    rungs = asha(ONE, 9, 1, search.ledger).rungs
    assert [milestone for milestone, _ in rungs] == [9, 3, 1]  # the form that `Rungs.rungs` relies on
    assert [recorded for _, recorded in rungs][1:] == [
        {"study-0": 0.5, "study-1": 0.9},
        {"study-0": 0.1, "study-1": 0.2},
    ]


def test_a_refilled_rung_stops_a_bad_trial_and_not_a_good_one(made):
    search = made()
    fill(search)
    for value, expected in ((0.15, TrialScheduler.STOP), (0.3, TrialScheduler.CONTINUE)):
        scheduler = asha(ONE, 9, 1, search.ledger)
        trial = SimpleNamespace(trial_id="new")
        scheduler.on_trial_add(None, trial)
        assert scheduler.on_trial_result(None, trial, {"round": 1, "val/L1/acc": value}) == expected


def test_smaller_is_better_where_it_is(tmp_path):
    ledger = Ledger("s", ledgers.storage(str(tmp_path / "s.log")), LOSS)
    scheduler = Rungs(LOSS, 9, 1, ledger)
    decisions = []
    for name, value in (("a", 0.5), ("b", 0.9), ("c", 0.1)):
        trial = SimpleNamespace(trial_id=name)
        scheduler.on_trial_add(None, trial)
        decisions.append(scheduler.on_trial_result(None, trial, {"round": 1, "train/loss": value}))
    assert decisions == [TrialScheduler.CONTINUE, TrialScheduler.STOP, TrialScheduler.CONTINUE]


def test_a_trial_that_ends_without_a_value_is_no_rival(tmp_path):
    """It led at the first rung, and diverged; without it, the next one goes on."""
    scheduler = Rungs(ONE, 9, 1, Ledger("s", ledgers.storage(str(tmp_path / "s.log")), ONE))
    leader, other = (SimpleNamespace(trial_id=name) for name in "ab")
    for trial in (leader, other):
        scheduler.on_trial_add(None, trial)
    scheduler.on_trial_result(None, leader, {"round": 1, "val/L1/acc": 0.9})
    scheduler.on_trial_complete(None, leader, {"round": 3, "val/L1/acc": math.nan})
    assert all(not recorded for _, recorded in scheduler.rungs)


def test_a_failed_trial_is_no_rival(tmp_path):
    """It led at the first rung; without it, the next one goes on."""
    ledger = Ledger("s", ledgers.storage(str(tmp_path / "s.log")), ONE)
    scheduler = Rungs(ONE, 9, 1, ledger)
    leader, nan, other = (SimpleNamespace(trial_id=name) for name in "abc")
    for trial in (leader, nan, other):
        scheduler.on_trial_add(None, trial)
    scheduler.on_trial_result(None, leader, {"round": 1, "val/L1/acc": 0.9})
    scheduler.on_trial_error(None, leader)
    assert scheduler.on_trial_result(None, nan, {"round": 1, "val/L1/acc": math.nan}) == TrialScheduler.STOP
    scheduler.on_trial_complete(None, nan, {"round": 1, "val/L1/acc": math.nan})
    assert scheduler.on_trial_result(None, other, {"round": 1, "val/L1/acc": 0.1}) == TrialScheduler.CONTINUE
    assert scheduler.rungs[-1][1] == {"c": 0.1}


def test_no_rung_before_the_end_means_no_scheduler(made):
    assert asha(ONE, 5, 5, made().ledger) is None
    assert asha(ONE, 6, 5, made().ledger) is not None
