"""The study on disk says which trials were made, whatever happened to the processes that made them."""

import subprocess
import sys

import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from pfl_ops.errors import PflOpsError
from pfl_ops.tuning import ledger as ledgers
from pfl_ops.tuning.ledger import ERROR, Ledger
from pfl_ops.tuning.objective import Objective

ONE = Objective(("val/L1/acc",), ("max",))
TWO = Objective(("val/L1/local/mean", "train/loss"), ("max", "min"))


@pytest.fixture
def address(tmp_path):
    return str(tmp_path / "study.log")  # a journal: quicker than SQLite


def ask(ledger, x):
    trial = ledger.study.ask()
    trial.suggest_float("x", 0, 1) if x is None else ledger.store.set_trial_param(
        trial._trial_id, "x", x, FloatDistribution(0, 1)
    )
    return trial


@pytest.mark.parametrize("kind", ["sqlite:///{}/s.db", "{}/s.log"])
def test_a_kill_leaves_running_trials_that_are_queued_again(tmp_path, kind):
    address = kind.format(tmp_path)
    first = Ledger("s", ledgers.storage(address), ONE, {"trials": 4})
    assert first.new and first.settings == {"trials": 4}
    first.enqueue([{"x": 0.25}])
    done, cut = ask(first, None), ask(first, 0.75)
    first.study.tell(done, 0.5)
    cut.report(0.1, 2)  # and now the process dies

    for _ in range(2):  # twice: a second kill right after the first recovery
        again = Ledger("s", ledgers.storage(address))
        assert not again.new
        assert again.recover() == 1
        assert again.done() == 1
        assert [(n, t.state) for n, t in again.trials()] == [(0, TrialState.COMPLETE), (1, TrialState.WAITING)]
        continued = again.study.ask()
        assert continued.suggest_float("x", 0, 1) == 0.75
        assert again.number(continued.number) == 1  # the reader's number stays
    new = ask(again, 0.1)
    assert again.number(new.number) == 2
    again.study.tell(continued, 0.9)
    again.study.tell(new, state=TrialState.FAIL)
    table = again.table(ONE.metrics)
    assert table["trial"].tolist() == [0, 1, 2]
    assert table["state"].tolist() == ["complete", "complete", "failed"]
    assert table["val/L1/acc"].tolist()[:2] == [0.5, 0.9]
    assert again.best()[0][0] == 1


def test_a_kill_in_the_middle_of_recovery_queues_nothing_twice(address):
    ledger = Ledger("s", ledgers.storage(address), ONE)
    cut = ask(ledger, 0.75)
    ledger.study.enqueue_trial({"x": 0.75}, {ledgers.CONTINUES: cut.number})  # queued, not yet told FAIL
    assert ledger.recover() == 1
    assert [t.state for _, t in ledger.trials()] == [TrialState.WAITING]


def test_failures_are_kept_with_their_error_and_count_as_not_done(address):
    ledger = Ledger("s", ledgers.storage(address), ONE)
    trial = ask(ledger, 0.5)
    trial.set_user_attr(ERROR, "ValueError: no")
    ledger.study.tell(trial, state=TrialState.FAIL)
    assert ledger.done() == 0 and ledger.best() == [] and ledger.chosen() is None
    assert ledger.table(ONE.metrics)["error"].tolist() == ["ValueError: no"]


def test_pruned_trials_are_never_the_best(address):
    """Optuna keeps a pruned trial's last value; an early 0.9 is no result."""
    ledger = Ledger("s", ledgers.storage(address), ONE)
    stopped, whole = ask(ledger, 0.1), ask(ledger, 0.2)
    stopped.report(0.9, 1)
    ledger.study.tell(stopped, state=TrialState.PRUNED)
    ledger.study.tell(whole, 0.5)
    assert [n for n, _ in ledger.best()] == [1]
    assert ledger.done() == 2
    assert ledger.curves() == {0: {1: 0.9}, 1: {}}


def test_the_choice_from_a_front_is_the_point_nearest_to_the_ideal(address):
    """Front in (accuracy up, loss down): (0.9, 10), (0.8, 2), (0.5, 1); (0.5, 5) is beaten.

    Ideal (0.9, 1); spreads 0.4 and 9. Squared distances: 0 + 1; (0.1/0.4)² + (1/9)² = 0.07; 1 + 0.
    """
    ledger = Ledger("s", ledgers.storage(address), TWO)
    for x, values in ((0.1, (0.9, 10.0)), (0.2, (0.5, 1.0)), (0.3, (0.8, 2.0)), (0.4, (0.5, 5.0))):
        ledger.study.tell(ask(ledger, x), values)
    assert [n for n, _ in ledger.best()] == [0, 1, 2]
    assert ledger.chosen()[0] == 2


def test_openings_of_the_test_data_are_counted(address):
    ledger = Ledger("s", ledgers.storage(address), ONE)
    assert ledger.open_test(3, {"x": 0.5}, [0, 1]) == 1
    assert ledger.open_test(3, {"x": 0.5}, [0]) == 1  # those seeds were tested
    assert ledger.open_test(3, {"x": 0.5}, [0, 1, 2]) == 2
    assert ledger.open_test(7, {"x": 0.6}, [0]) == 3
    assert [o["trial"] for o in ledger.openings()] == [3, 3, 7]


def test_an_unknown_study_is_an_error_with_the_nearest(address):
    with pytest.raises(PflOpsError, match="no study named 'fliu'"):
        Ledger("fliu", ledgers.storage(address))
    Ledger("fliu-digits", ledgers.storage(address), ONE)
    with pytest.raises(PflOpsError, match=r"no study named 'fliu-digit'\. Did you mean 'fliu-digits'?"):
        Ledger("fliu-digit", ledgers.storage(address))


def test_a_running_study_is_locked_and_a_dead_one_is_not(tmp_path):
    hold = f"""if 1:
        import time
        from pathlib import Path
        from pfl_ops.tuning import ledger
        with ledger.lock(Path({str(tmp_path)!r}), "s"):
            print("held", flush=True)
            time.sleep(60)"""
    other = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    with (
        pytest.raises(PflOpsError, match=rf"study 's' is running \(process {other.pid} on "),
        ledgers.lock(tmp_path, "s"),
    ):
        pass
    with ledgers.lock(tmp_path, "t"):
        pass
    other.kill()
    other.wait()
    with ledgers.lock(tmp_path, "s"):
        pass


@pytest.mark.parametrize("address", ["studies.db", "mysql+nothing://u:secret@h/x", "sqlite:////proc/none/s.db"])
def test_a_storage_that_can_t_be_opened_is_one_line(address):
    with pytest.raises(PflOpsError, match="study storage") as caught:
        ledgers.storage(address)
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)
