"""The study on disk says which trials were made, whatever happened to the processes that made them."""

import os
import sqlite3
import subprocess
import sys

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from pfl_ops import databases
from pfl_ops.display import tables
from pfl_ops.errors import PflOpsError
from pfl_ops.tuning.session.begin import recorded_settings
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies import study_storage as study_storages
from pfl_ops.tuning.studies.objective import Objective
from pfl_ops.tuning.studies.study_storage import ERROR, StudyStorage

ONE = Objective(("val/L1/acc",), ("max",))
TWO = Objective(("val/L1/local/mean", "train/loss"), ("max", "min"))


@pytest.fixture
def address(tmp_path):
    return str(tmp_path / "study.log")  # a journal: quicker than SQLite


def ask(study_storage, x):
    trial = study_storage.study.ask()
    trial.suggest_float("x", 0, 1) if x is None else study_storage.store.set_trial_param(
        trial._trial_id, "x", x, FloatDistribution(0, 1)
    )
    return trial


def test_a_null_in_the_table_of_trials_is_not_a_missing_parameter(address, tmp_path):
    """batch_size none means all samples; a trial without the parameter has the experiment's 50."""
    study_storage = StudyStorage("s", study_database.storage(address), ONE)
    study_storage.enqueue([{"training.batch_size": 10}, {"training.batch_size": None}, {}])
    for varied, value in ((True, 0.1), (True, 0.3), (False, 0.2)):
        trial = study_storage.study.ask()
        if varied:
            trial.suggest_categorical("training.batch_size", [10, None])
        study_storage.study.tell(trial, value)
    table = study_storage.table(ONE.metrics)
    assert table["training.batch_size"].fillna("").tolist() == ["10", "none", ""]
    table.to_parquet(tmp_path / "trials.parquet")
    shown = [row[-1] for row in tables.trials(table, ONE.metrics, ONE.modes, 0, "trials").rows]
    assert shown == ["training.batch_size=none", "", "training.batch_size=10"]


@pytest.mark.parametrize(
    ("choices", "column"),
    [
        ([10, 0.5], [10, 0.5]),
        ([10, "auto"], ["10", "auto"]),
        ([True, 2], ["true", "2"]),
        ([True, False], [True, False]),
        ([None], ["none", "none"]),  # an empty cell is a setting that does not exist
    ],
)
def test_a_choice_of_several_kinds_can_be_written(address, tmp_path, choices, column):
    """A file of Parquet takes no column of numbers and texts: the study ended there, after all of its trials."""
    study_storage = StudyStorage("s", study_database.storage(address), ONE)
    study_storage.enqueue([{"algorithm.x": value} for value in choices])
    for value in (0.5, 0.75):
        trial = study_storage.study.ask()
        trial.suggest_categorical("algorithm.x", choices)
        study_storage.study.tell(trial, value)
    table = study_storage.table(ONE.metrics)
    assert table["algorithm.x"].tolist() == column
    table.to_parquet(tmp_path / "trials.parquet")


def test_opening_a_study_reads_no_trials_of_others(address, monkeypatch):
    """A storage may have thousands, each of which takes half a millisecond."""
    for name in ("one", "other"):
        StudyStorage(name, study_database.storage(address), ONE, {"method": name}).study.enqueue_trial({})
    store, read = study_database.storage(address), []
    real = store.get_all_trials
    monkeypatch.setattr(store, "get_all_trials", lambda study, *more, **options: read.append(study) or real(study))
    assert StudyStorage("other", store, ONE).settings == {"method": "other"}
    assert study_storages.recorded(store) == {"one": {"method": "one"}, "other": {"method": "other"}}
    with pytest.raises(PflOpsError, match="Did you mean 'other'"):
        StudyStorage("othr", store)
    assert read == []


@pytest.mark.parametrize("kind", ["sqlite:///{}/s.db", "{}/s.log"])
def test_a_kill_leaves_running_trials_that_are_queued_again(tmp_path, kind):
    address = kind.format(tmp_path)
    first = StudyStorage("s", study_database.storage(address), ONE, {"trials": 4})
    assert first.new and first.settings == {"trials": 4}
    first.enqueue([{"x": 0.25}])
    done, cut = ask(first, None), ask(first, 0.75)
    first.study.tell(done, 0.5)
    cut.report(0.1, 2)  # and now the process dies

    for _ in range(2):  # twice: a second kill right after the first recovery
        again = StudyStorage("s", study_database.storage(address))
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
    assert again.sampled() == 2, "the continued one is as it began, no starting point"


@pytest.mark.parametrize("taken", [0, 1])
def test_queued_trial_killed_before_its_parameters_keeps_them(address, taken):
    """The process dies after Optuna has begun a queued trial, with no parameter or one of two taken: twice,
    the second time of the continued one, whose ended parts would else be those of another configuration."""
    parts = [{"part": {"seed": 0, "environment": ""}}]
    StudyStorage("s", study_database.storage(address), ONE).enqueue([{"x": 0.25, "y": 0.75}])
    for _ in range(2):
        study_storage = StudyStorage("s", study_database.storage(address))
        study_storage.recover()
        trial = study_storage.study.ask()
        trial.set_user_attr(study_storages.PARTS, parts)
        assert [trial.suggest_float(name, 0, 1) for name in "xy"[:taken]] == [0.25, 0.75][:taken]
    again = StudyStorage("s", study_database.storage(address))
    assert again.recover() == 1
    trial = again.study.ask()
    assert (trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)) == (0.25, 0.75)
    assert again.number(trial.number) == 0 and trial.user_attrs[study_storages.PARTS] == parts


def test_a_kill_in_the_middle_of_recovery_queues_nothing_twice(address):
    study_storage = StudyStorage("s", study_database.storage(address), ONE)
    cut = ask(study_storage, 0.75)
    study_storage.study.enqueue_trial({"x": 0.75}, {study_storages.CONTINUES: cut.number})  # queued, not yet told FAIL
    assert study_storage.recover() == 1
    assert [t.state for _, t in study_storage.trials()] == [TrialState.WAITING]


@pytest.mark.parametrize(("mode", "values", "best"), [
    ("max", [0.5, 0.9, 0.9, 0.1], 1),
    ("min", [0.5, 0.1, 0.9, 0.1], 1),
    ("min", [0.5, 0.6, 0.5, 0.7], 0),
])  # fmt: skip
def test_the_best_of_one_objective_is_the_first_of_equal_ones(address, mode, values, best):
    """As Optuna's, which counts a failed trial as none."""
    study_storage = StudyStorage("s", study_database.storage(address), Objective(("val/L1/acc",), (mode,)))
    for i, value in enumerate(values):
        study_storage.study.tell(ask(study_storage, i / 10), value)
    study_storage.study.tell(ask(study_storage, 0.9), state=TrialState.FAIL)
    assert [(n, t.number) for n, t in study_storage.best()] == [(best, best)]
    assert study_storage.best()[0][1] == study_storage.study.best_trials[0]


def test_trials_are_read_once_while_that_is_asked_for(address, monkeypatch):
    study_storage = StudyStorage("s", study_database.storage(address), ONE)
    study_storage.study.tell(ask(study_storage, 0.5), 0.5)
    reads = []
    read = study_storage.study.get_trials
    monkeypatch.setattr(study_storage.study, "get_trials", lambda **given: reads.append(given) or read(**given))
    with study_storage.reading_once():
        assert (study_storage.done(), study_storage.number(0), study_storage.best()[0][0], study_storage.begun()) == (
            1,
            0,
            0,
            True,
        )
        with study_storage.reading_once():
            assert study_storage.done() == 1
    assert len(reads) == 1
    study_storage.study.tell(ask(study_storage, 0.6), 0.6)
    assert study_storage.done() == 2 and len(reads) == 2
    with pytest.raises(ValueError), study_storage.reading_once():
        raise ValueError
    study_storage.study.tell(ask(study_storage, 0.7), 0.7)
    assert study_storage.done() == 3


def test_failures_are_kept_with_their_error_and_count_as_not_done(address):
    study_storage = StudyStorage("s", study_database.storage(address), ONE)
    trial = ask(study_storage, 0.5)
    trial.set_user_attr(ERROR, "ValueError: no")
    study_storage.study.tell(trial, state=TrialState.FAIL)
    assert study_storage.done() == 0 and study_storage.best() == [] and study_storage.chosen() is None
    assert study_storage.table(ONE.metrics)["error"].tolist() == ["ValueError: no"]


def test_pruned_trials_are_never_the_best(address):
    """Optuna keeps a pruned trial's last value; an early 0.9 is no result."""
    study_storage = StudyStorage("s", study_database.storage(address), ONE)
    stopped, whole = ask(study_storage, 0.1), ask(study_storage, 0.2)
    stopped.report(0.9, 1)
    study_storage.study.tell(stopped, state=TrialState.PRUNED)
    study_storage.study.tell(whole, 0.5)
    assert [n for n, _ in study_storage.best()] == [1]
    assert study_storage.done() == 2
    assert study_storage.curves() == {0: {1: 0.9}, 1: {}}


def test_the_choice_from_a_front_is_the_point_nearest_to_the_ideal(address):
    """Front in (accuracy up, loss down): (0.9, 10), (0.8, 2), (0.5, 1); (0.5, 5) is beaten.

    Ideal (0.9, 1); spreads 0.4 and 9. Squared distances: 0 + 1; (0.1/0.4)² + (1/9)² = 0.07; 1 + 0.
    """
    study_storage = StudyStorage("s", study_database.storage(address), TWO)
    for x, values in ((0.1, (0.9, 10.0)), (0.2, (0.5, 1.0)), (0.3, (0.8, 2.0)), (0.4, (0.5, 5.0))):
        study_storage.study.tell(ask(study_storage, x), values)
    assert [n for n, _ in study_storage.best()] == [0, 1, 2]
    assert study_storage.chosen()[0] == 2


def test_two_points_of_a_front_are_equally_near_to_the_ideal(address):
    """Each is the best in one objective and a whole spread behind in the other: the first one is taken."""
    study_storage = StudyStorage("s", study_database.storage(address), TWO)
    for x, values in ((0.1, (0.76, 2.0)), (0.2, (0.1, 9.0)), (0.3, (0.92, 7.0))):
        study_storage.study.tell(ask(study_storage, x), values)
    assert [n for n, _ in study_storage.best()] == [0, 2] and study_storage.chosen()[0] == 0


def test_openings_of_the_test_data_are_counted(address):
    study_storage = StudyStorage("s", study_database.storage(address), ONE)
    assert study_storage.open_test(3, {"x": 0.5}, [0, 1]) == 1
    assert study_storage.open_test(3, {"x": 0.5}, [0]) == 1  # those seeds were tested
    assert study_storage.open_test(3, {"x": 0.5}, [0, 1, 2]) == 2
    assert study_storage.open_test(7, {"x": 0.6}, [0]) == 3
    assert study_storage.open_test(8, {"x": 0.5}, [1]) == 3  # another trial of a choice that was tested
    assert study_storage.open_test(3, {"x": 0.4}, [0]) == 4
    assert [o["trial"] for o in study_storage.openings()] == [3, 3, 7, 3]


def test_an_unknown_study_is_an_error_with_the_nearest(address):
    with pytest.raises(PflOpsError, match="no study named 'fliu'"):
        StudyStorage("fliu", study_database.storage(address))
    StudyStorage("fliu-digits", study_database.storage(address), ONE)
    with pytest.raises(PflOpsError, match=r"no study named 'fliu-digit'\. Did you mean 'fliu-digits'?"):
        StudyStorage("fliu-digit", study_database.storage(address))


def test_a_running_study_is_locked_and_a_dead_one_is_not(tmp_path):
    hold = f"""if 1:
        import time
        from pathlib import Path
        from pfl_ops.tuning.studies import study_database
        with study_database.lock(Path({str(tmp_path)!r}), "s"):
            print("held", flush=True)
            time.sleep(60)"""
    other = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    with (
        pytest.raises(PflOpsError, match=rf"study 's' is running \(process {other.pid} on "),
        study_database.lock(tmp_path, "s"),
    ):
        pass
    with study_database.lock(tmp_path, "t"):
        pass
    other.kill()
    other.wait()
    with study_database.lock(tmp_path, "s"):
        pass


def test_a_server_s_storage_that_is_only_read_gets_no_tables(tmp_path):
    """A dry run made 25 of Optuna's. An address with a driver stands for a server here."""
    address, names = f"sqlite+pysqlite:///{tmp_path / 's.db'}", lambda: databases.tables(tmp_path / "s.db")
    assert study_database.existing(address).get_all_studies() == [] and not names()
    StudyStorage("s", study_database.storage(address), ONE)
    assert "studies" in names() and [study.study_name for study in study_database.existing(address).get_all_studies()]


@pytest.mark.parametrize("address", ["studies.db", "mysql+nothing://u:secret@h/x", "sqlite:////proc/none/s.db"])
def test_a_storage_that_can_t_be_opened_is_one_line(address):
    with pytest.raises(PflOpsError, match="study storage") as caught:
        study_database.storage(address)
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "half", ["DROP TABLE alembic_version", "DELETE FROM alembic_version", "DROP TABLE version_info"]
)
def test_a_half_made_storage_without_studies_opens(tmp_path, half):
    file = tmp_path / "s.db"
    study_database.storage(f"sqlite:///{file}")
    change(file, half)
    assert StudyStorage("s", study_database.storage(f"sqlite:///{file}"), ONE).new


@pytest.mark.parametrize("studies", [False, True])
def test_a_storage_of_another_optuna_is_made_again_only_without_studies(tmp_path, caplog, studies):
    address = f"sqlite:///{tmp_path / 's.db'}"
    store = study_database.storage(address)
    if studies:
        StudyStorage("s", store, ONE)
    change(tmp_path / "s.db", "UPDATE alembic_version SET version_num = 'v0.9.0.a'")
    before = (tmp_path / "s.db").read_bytes()
    if studies:
        with pytest.raises(PflOpsError, match=r"study storage 'sqlite:////.*' can't be opened: The runtime optuna"):
            study_database.storage(address)
        assert (tmp_path / "s.db").read_bytes() == before
    else:
        assert StudyStorage("s", study_database.storage(address), ONE).new
        assert (tmp_path / "s.unfinished.db").read_bytes() == before
        assert [r.getMessage() for r in caplog.records] == [
            f"the database {tmp_path / 's.db'} was left unfinished by an earlier start and holds no study; it is kept "
            "as s.unfinished.db, and a new one is made"
        ]


def change(file, statement):
    connection = sqlite3.connect(file)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_storage_is_whole_as_soon_as_it_has_its_name(tmp_path, monkeypatch):
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(os, "replace", lambda *_: os._exit(9))
        study_database.storage(f"sqlite:///{tmp_path}/s.db")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not (tmp_path / "s.db").exists()
    assert StudyStorage("s", study_database.storage(f"sqlite:///{tmp_path}/s.db"), ONE).new
    assert {p.name for p in tmp_path.iterdir()} == {".s.db.lock", "s.db"}


def test_a_torn_last_line_of_a_journal_is_cut_off(address, tmp_path):
    """Optuna skips such a line and glues the next one to it; from then on nothing can be read."""
    study_storage = StudyStorage("s", study_database.storage(address), ONE)
    study_storage.study.tell(ask(study_storage, 0.5), 0.25)
    with open(address, "ab") as journal:
        journal.write(b'{"op_code":4,"worker_id":"x')
    for n in (1, 2):
        again = StudyStorage("s", study_database.storage(address), ONE)
        assert again.done() == n
        again.study.tell(ask(again, 0.5), 0.25)
    assert [p.name for p in tmp_path.iterdir()] == ["study.log"], "the lock was given back"


class Killed(BaseException):
    """The process ends here."""


def kill_at(monkeypatch, place, name, call):
    """From the given call on, what is written through this method is not."""
    calls, usual = [], getattr(place, name)

    def write(*args, **kwargs):
        calls.append(1)
        if len(calls) >= call:
            raise Killed
        return usual(*args, **kwargs)

    monkeypatch.setattr(place, name, write)


POINTS = [{"x": 0.1}, {"x": 0.2}, {"x": 0.1}]  # the same twice: two trials


@pytest.mark.parametrize("objective", [ONE, TWO], ids=["the same objective", "another objective"])
@pytest.mark.parametrize("kind", ["sqlite:///{}/s.db", "{}/s.log"])
def test_a_study_killed_before_its_settings_is_begun_again(tmp_path, monkeypatch, kind, objective):
    address = kind.format(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, optuna.Study, "set_user_attr", 1)
        StudyStorage("s", study_database.storage(address), ONE, {"digest": "d"})
    store = study_database.storage(address)
    assert study_storages.recorded(store) == {"s": {}}
    with pytest.raises(PflOpsError, match="study 's' was stopped before its settings were recorded; begin it again"):
        recorded_settings("s", store)
    again = StudyStorage("s", store, objective, {"digest": "d"}, resume=True)
    assert again.new and again.settings == {"digest": "d"}
    assert len(again.study.directions) == len(objective.modes)
    assert not StudyStorage("s", store, objective, {"digest": "e"}).new


def test_a_study_of_somebody_else_is_left_alone(address):
    store = study_database.storage(address)
    optuna.create_study(storage=store, study_name="theirs").ask()
    with pytest.raises(PflOpsError, match="'theirs' in this storage was not made by pfl-ops; choose another --name"):
        StudyStorage("theirs", store, ONE, {"digest": "d"})


@pytest.mark.parametrize("call", [1, 2, 3])
def test_first_points_are_queued_once_wherever_a_kill_comes(address, monkeypatch, call):
    study_storage = StudyStorage("s", study_database.storage(address), ONE)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, optuna.Study, "enqueue_trial", call)
        study_storage.enqueue(POINTS)
    for _ in range(2):
        again = StudyStorage("s", study_database.storage(address), ONE)
        again.enqueue(POINTS)
        assert [t.system_attrs["fixed_params"] for _, t in again.trials()] == POINTS
    ask(again, None)
    again.enqueue(POINTS)
    assert len(again.trials()) == 3


def test_first_points_of_an_older_study_are_not_queued_again(address):
    study_storage = StudyStorage("s", study_database.storage(address), ONE)
    study_storage.study.enqueue_trial({"x": 0.1})
    study_storage.enqueue(POINTS)
    assert len(study_storage.trials()) == 1
