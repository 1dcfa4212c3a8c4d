"""Ctrl-C, then SIGKILL, then the rest: the study on disk goes on as if nothing had happened."""

import contextlib
import json
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import fork_server
import pandas as pd
import psutil
import pytest
from optuna.trial import TrialState
from tuning_fake import let_end, records, toy, tune

from pfl_ops.errors import PflOpsError
from pfl_ops.tracking import Store
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies import study_storage as study_storages

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


@pytest.fixture
def start(home):
    """A driver in a process of its own, gone at the end whatever happens."""
    drivers = []

    def go(*arguments):
        argv = [*fork_server.python(), str(HERE / "killed.py"), str(home), *arguments]
        pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        drivers.append(subprocess.Popen(argv, start_new_session=True, **pipes))
        return drivers[-1]

    yield go
    for driver in drivers:
        if driver.poll() is None:
            driver.kill()
            driver.communicate()


def wait_for_rounds(driver, home, rounds, among):
    """Until a checkpoint that is not `among` the given has so many rounds."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and driver.poll() is None:
        for file in (home / "checkpoints").glob("*.json"):
            if file not in among and len(json.loads(file.read_text())) >= rounds:
                return
        time.sleep(0.1)
    driver.kill()
    raise AssertionError(f"no trial came that far: {driver.communicate()[1]}")


def wait_for_confirmation(driver, home):
    """Until the study has recorded a run with a new seed."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and driver.poll() is None:
        if len(finished(home)) > 2 and study_storage(home).confirmations():
            return
        time.sleep(0.2)
    driver.kill()
    raise AssertionError(f"no run with a new seed has finished: {driver.communicate()[1]}")


def wait_for_tests(driver, home, number):
    """Until so many runs have ended and the study has opened its test data."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and driver.poll() is None:
        if len(finished(home)) >= number and study_storage(home).openings():
            return
        time.sleep(0.2)
    driver.kill()
    raise AssertionError(f"the tests did not come that far: {driver.communicate()[1]}")


def kill_while_a_third_run_trains(driver, home):
    """SIGKILL after two runs have ended, as many as may, and another one has finished rounds."""
    wait_for_rounds(driver, home, 10, among=())
    wait_for_rounds(driver, home, 10, among=finished(home)[:1])
    kill_while_a_run_trains(driver, home)


def kill_while_a_run_trains(driver, home):
    """SIGKILL for the driver and for Ray's workers, as when a machine stops; a run has finished rounds by then.

    The workers are held meanwhile: without their driver they go on until they notice, and a run might end.
    """
    wait_for_rounds(driver, home, 3, among=finished(home))
    unfinished = [rounds for rounds in checkpoints(home).values() if len(rounds) < 10]
    workers = [worker for worker in map(worker_of, unfinished) if worker]
    for worker in workers:
        worker.suspend()
    driver.kill()
    driver.communicate()
    for worker in workers:
        worker.kill()
    psutil.wait_procs(workers, timeout=30)
    wait_until_quiet(home)
    let_end(home, None)


def worker_of(rounds):
    """Ray's process that has computed the last of these rounds; None: it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(rounds[-1]["metrics"]["pid"]))
        return process if process.cmdline()[0].startswith("ray::") else None


def wait_until_quiet(home):
    """Until Ray's processes have noticed that their driver is gone."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        now = checkpoints(home)
        time.sleep(1.0)
        if checkpoints(home) == now:
            return


def checkpoints(home):
    return {f: json.loads(f.read_text()) for f in (home / "checkpoints").glob("*.json")}


def finished(home):
    return [f for f, rounds in checkpoints(home).items() if len(rounds) == 10]


def study_storage(home):
    return study_storages.StudyStorage("killed", study_database.storage(f"sqlite:///{home}/studies.db"))


@pytest.fixture
def home(tmp_path, furnish):
    return furnish(tmp_path)


def processes(home):
    """{experiment, by its checkpoint: processes that computed rounds of it}."""
    return {file.name: {r["metrics"]["pid"] for r in rounds} for file, rounds in checkpoints(home).items()}


@pytest.mark.usefixtures("one_ray")
def test_a_study_survives_a_kill_while_it_confirms(start, home):
    """SIGKILL while the second or a later one of six runs with new seeds is under way; the rest in this process."""
    toy()
    let_end(home, 2 + 2)
    driver = start("--confirm")
    wait_for_confirmation(driver, home)
    kill_while_a_run_trains(driver, home)
    kept = study_storage(home).confirmations()
    before, over = processes(home), {file.name for file in finished(home)}
    assert 1 <= len(kept) < 6 and study_storage(home).done() == 2 and not study_storage(home).openings()

    tested = SimpleNamespace(final={})
    settings = {"home": home, "concurrency": 2, "records": records, "final": lambda *_: tested, "confirm": None}
    study = tune(None, name="killed", resume=True, **settings)
    found = study.confirmation
    assert (study.best["algorithm.x"], study.finals, study.openings) == (0.8, [tested], 1)
    assert found.table.groupby("trial")["seed"].apply(list).to_dict() == {0: [1000, 1001, 1002], 1: [1000, 1001, 1002]}
    assert found.table["value"].tolist() == pytest.approx([0.8] * 3 + [0.5] * 3)
    recorded = study_storage(home).confirmations()
    assert recorded[: len(kept)] == kept and len(recorded) == 6, "none lost, none repeated"
    now = processes(home)
    assert len(now) == 2 + 6 + 1, "trials, runs with new seeds, the test"
    assert {name: now[name] for name in over} == {name: before[name] for name in over}
    assert any(len(now[name]) > 1 for name in before.keys() - over), "one went on from its checkpoint"

    with Store.open(home) as store:
        runs = [run for run in store.runs("killed") if run.tags["pfl_ops.kind"] == "confirmation"]
        assert sorted(run.name for run in runs) == [f"confirm-{t:03d}-seed{1000 + i}" for t in (0, 1) for i in range(3)]
        assert {run.status for run in runs} == {"FINISHED"}
        assert all(store.history(run.run_id).index.tolist() == list(range(10)) for run in runs)


@pytest.mark.usefixtures("one_ray")
def test_a_study_survives_a_kill_between_two_seeds_of_a_trial(start, home):
    """SIGKILL after two runs of the first trials have ended, while others are under way; the rest in this process."""
    toy()
    let_end(home, 2)
    driver = start("--seeds")
    kill_while_a_third_run_trains(driver, home)
    before, over = processes(home), {file.name for file in finished(home)}
    assert len(over) == 2 and before.keys() - over

    settings = {"home": home, "concurrency": 2, "records": records, "final_repetitions": 0}
    study = tune(None, name="killed", resume=True, **settings)
    assert study.table["state"].tolist() == ["complete"] * 4
    assert study.table["algorithm.x"].tolist() == [0.5, 0.7, 0.6, 0.8]
    assert study.table["samples"].tolist() == [180] * 4
    now = processes(home)
    assert len(now) == 4 * 2 and {name: now[name] for name in over} == {name: before[name] for name in over}
    assert any(len(now[name]) > 1 for name in before.keys() - over), "one went on from its checkpoint"
    with Store.open(home) as store:
        runs = [run for run in store.runs("killed") if run.tags["pfl_ops.kind"] == "trial"]
        assert sorted(run.name.partition(" toy")[0] for run in runs) == [
            f"{trial:03d} (seed {seed})" for trial in range(4) for seed in (0, 1)
        ]
        assert {(run.status, run.tags["pfl_ops.trial_state"]) for run in runs} == {("FINISHED", "complete")}
        assert all(store.history(run.run_id).index.tolist() == list(range(10)) for run in runs)


@pytest.mark.usefixtures("one_ray")
def test_a_study_in_environments_survives_kills_in_two_phases(start, home):
    """SIGKILL while the third run of FedAvg is under way, and while the choice is confirmed; the rest here."""
    toy()
    let_end(home, 2)
    driver = start("--confirm", "--environments")
    kill_while_a_third_run_trains(driver, home)
    first, over = processes(home), {file.name for file in finished(home)}
    assert len(over) == 2 and len(study_storage(home).baselines()) <= 2 and not study_storage(home).begun()

    let_end(home, 1 + 2 * 3 + 2)
    driver = start("--confirm", "--environments", "--resume")
    wait_for_confirmation(driver, home)
    kill_while_a_run_trains(driver, home)
    second, later = processes(home), {file.name for file in finished(home)}
    assert {name: second[name] for name in over} == {name: first[name] for name in over}
    kept = study_storage(home).confirmations()
    assert 1 <= len(kept) < 6 and study_storage(home).done() == 2 and not study_storage(home).openings()

    tested = SimpleNamespace(final={}, run_id="r")
    settings = {"home": home, "concurrency": 2, "records": records, "final": lambda *_: tested, "confirm": None}
    study = tune(None, name="killed", resume=True, **settings)
    now = processes(home)
    assert {name: now[name] for name in later} == {name: second[name] for name in later}
    assert any(len(now[name]) > 1 for name in first.keys() - over), "FedAvg's third run went on from its checkpoint"
    assert len(now) == 3 + 2 * 3 + 2 * 3 + 3 * 2, "FedAvg, trials, runs with a new seed, tests of choice and FedAvg"
    recorded = study_storage(home).confirmations()
    assert recorded[: len(kept)] == kept and len(recorded) == 6 and len(study_storage(home).baselines()) == 3
    goal = "val/L1/acc/of_fedavg/mean"
    assert study.table[goal].tolist() == pytest.approx([1.0, 1.6]) and study.best["algorithm.x"] == 0.8
    assert study.confirmation.table["value"].tolist() == pytest.approx([1.6, 1.0])
    assert study.openings == 1 and study.environments["n"].tolist() == [1] * 3

    with Store.open(home) as store:
        runs = [run for run in store.runs("killed") if run.tags["pfl_ops.kind"] in ("trial", "confirmation")]
        assert len(runs) == 3 + 6 + 6 and {run.status for run in runs} == {"FINISHED"}
        assert all(store.history(run.run_id).index.tolist() == list(range(10)) for run in runs)


@pytest.mark.usefixtures("one_ray")
def test_a_study_survives_a_kill_while_it_is_tested(start, home):
    """SIGKILL while the third or a later one of eight tests is under way: two seeds of choice and FedAvg, in the tuned
    and in the held-out environment. The test data are opened once."""
    toy()
    searched = 1 + 2
    let_end(home, searched + 2)
    driver = start("--tests")
    wait_for_tests(driver, home, searched + 2)
    kill_while_a_run_trains(driver, home)
    before, over = processes(home), {file.name for file in finished(home)}
    assert len(over) == searched + 2 and study_storage(home).done() == 2 and len(study_storage(home).openings()) == 1

    tested = SimpleNamespace(final={}, run_id="r")
    settings = {"home": home, "concurrency": 2, "records": records, "final": lambda *_: tested, "confirm": None}
    study = tune(None, name="killed", resume=True, final_repetitions=2, **settings)
    now = processes(home)
    assert len(now) == searched + 2 * 2 * 2, "none repeated under another identity"
    assert {name: now[name] for name in over} == {name: before[name] for name in over}
    assert any(len(now[name]) > 1 for name in before.keys() - over), "one went on from its checkpoint"
    assert (study.best["algorithm.x"], study.openings) == (0.8, 1)
    assert study.environments["n"].tolist() == [2, 2] and study.environments["held_out"].tolist() == [False, True]


@pytest.mark.usefixtures("one_ray")
def test_a_study_survives_ctrl_c_and_sigkill(start, home):
    toy()  # its plug-in must be loaded to resume it here
    # Ctrl-C in the middle of the first two trials
    let_end(home, 0)
    driver = start()
    wait_for_rounds(driver, home, 3, among=())
    with pytest.raises(PflOpsError, match=r"study 'killed' is running \(process "):
        tune(None, name="killed", resume=True, home=home)
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=60)
    assert driver.returncode == 130, err
    assert err.splitlines()[-1].endswith(f"go on with: pfl-ops tune toy --name killed --plugin {HERE}/toy.py --resume")
    assert "Traceback" not in err and out == ""
    running = [t for _, t in study_storage(home).trials() if t.state is TrialState.RUNNING]
    assert len(running) == 2

    # SIGKILL some rounds later
    let_end(home, None)
    before = checkpoints(home)
    driver = start("--resume")
    wait_for_rounds(driver, home, 7, among=finished(home))
    driver.kill()
    driver.communicate()
    kept = study_storage(home).done()

    # and the rest in this process, with one more than was wanted at first
    wait_until_quiet(home)
    tested = SimpleNamespace(final={})
    study = tune(
        None, name="killed", resume=True, trials=5, home=home, concurrency=2, records=records, final=lambda *_: tested
    )
    assert study.table["state"].tolist() == ["complete"] * 5
    assert study.table["trial"].tolist() == [0, 1, 2, 3, 4]
    assert study.table["algorithm.x"].tolist()[:4] == [0.5, 0.7, 0.6, 0.8]  # none lost, none twice
    assert (study.best["algorithm.x"], study.finals) == (study.table["algorithm.x"].max(), [tested])
    assert kept <= study_storage(home).done() == 5

    # the first two went on from their checkpoints: rounds of more than one process, the old ones unchanged
    for file, rounds in before.items():
        assert checkpoints(home)[file][: len(rounds)] == rounds
        assert len({r["metrics"]["pid"] for r in checkpoints(home)[file]}) > 1

    # MLflow has each trial once, with every round once
    with Store.open(home) as store:
        runs = store.runs("killed")
        assert sorted(r.name.split()[0] for r in runs) == [*(f"{i:03d}" for i in range(5)), "study"]
        assert {r.status for r in runs} == {"FINISHED"}
        for run in runs[1:]:
            history = store.history(run.run_id)
            assert history.index.tolist() == list(range(10))
            assert not history["train/loss"].isna().any()
            pd.testing.assert_series_equal(
                history["train/loss"],
                1 - float(run.params["algorithm.x"]) * history.index.to_series() / 9,
                check_names=False,
            )
