"""Ctrl-C, then SIGKILL, then the rest: the study on disk goes on as if nothing had happened."""

import json
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import fork_server
import pandas as pd
import pytest
from optuna.trial import TrialState
from tuning_fake import records, toy, tune

from pfl_ops.errors import PflOpsError
from pfl_ops.tracking import Store
from pfl_ops.tuning import ledger as ledgers

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


def checkpoints(home):
    return {f: json.loads(f.read_text()) for f in (home / "checkpoints").glob("*.json")}


def finished(home):
    return [f for f, rounds in checkpoints(home).items() if len(rounds) == 10]


def ledger(home):
    return ledgers.Ledger("killed", ledgers.storage(f"sqlite:///{home}/studies.db"))


@pytest.fixture
def home(tmp_path, furnish):
    return furnish(tmp_path)


@pytest.mark.usefixtures("one_ray")
def test_a_study_survives_ctrl_c_and_sigkill(start, home):
    toy()  # its plug-in must be loaded to resume it here
    # Ctrl-C in the middle of the first two trials
    driver = start()
    wait_for_rounds(driver, home, 3, among=())
    with pytest.raises(PflOpsError, match=r"study 'killed' is running \(process "):
        tune(None, name="killed", resume=True, home=home)
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=60)
    assert driver.returncode == 130, err
    assert err.splitlines()[-1].endswith(f"go on with: pfl-ops tune toy --name killed --plugin {HERE}/toy.py --resume")
    assert "Traceback" not in err and out == ""
    running = [t for _, t in ledger(home).trials() if t.state is TrialState.RUNNING]
    assert len(running) == 2

    # SIGKILL some rounds later
    before = checkpoints(home)
    driver = start("--resume")
    wait_for_rounds(driver, home, 7, among=finished(home))
    driver.kill()
    driver.communicate()
    kept = ledger(home).done()

    # and the rest in this process, with one more than was wanted at first
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # Ray's processes notice that their driver is gone
        now = checkpoints(home)
        time.sleep(1.0)
        if checkpoints(home) == now:
            break
    tested = SimpleNamespace(final={})
    study = tune(
        None, name="killed", resume=True, trials=5, home=home, concurrency=1, records=records, final=lambda *_: tested
    )
    assert study.table["state"].tolist() == ["complete"] * 5
    assert study.table["trial"].tolist() == [0, 1, 2, 3, 4]
    assert study.table["algorithm.x"].tolist()[:4] == [0.5, 0.7, 0.6, 0.8]  # none lost, none twice
    assert (study.best["algorithm.x"], study.finals) == (study.table["algorithm.x"].max(), [tested])
    assert kept <= ledger(home).done() == 5

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
