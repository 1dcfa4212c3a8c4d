"""A run that its process leaves to a courier is tracked as one that the process tracks itself."""

import errno
import fcntl
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fork_server
import numpy as np
import pytest
import torch
from filelock import FileLock

from pfl_ops import courier, recording, registry, runs, tag_names
from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config.experiment import Experiment
from pfl_ops.data import partition_files
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.execution import choose
from pfl_ops.federation.loop.simulate import Simulation
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state import checkpoint
from pfl_ops.tracking import Store
from pfl_ops.tracking.home import WorkFolder
from pfl_ops.tracking.spools import requests
from pfl_ops.tracking.target.run_info import RunInfo

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children", "blank_pictures")]

LOOP = Execution(device="cpu", way="loop", workers=1, threads=1)
CLOCK = {"cost/train_seconds", "cost/eval_seconds"}
OWN = {*CLOCK, *(f"total/{key}" for key in CLOCK), "cost/samples_per_second", "cost/peak_mib"}


def experiment(**more: Any) -> Experiment:
    given = {"dataset": "digits", "model": "linear", "clients": 4, "rounds": 3, "batch_size": 20}
    return Experiment.of("fliu", **given | {"data.train_size": 120} | more)


@pytest.fixture
def home(tmp_path: Path, furnish: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A work folder whose runs couriers track; at the end none is at work. Plug-ins of other tests stay with them."""
    monkeypatch.setattr(registry, "_plugins", {})
    monkeypatch.delenv("PFL_OPS_COURIER")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield furnish(tmp_path / "home")
    requests.settle(WorkFolder(tmp_path / "home"))


def go(e: Experiment, home: Path, **more: Any) -> runs.Result:
    return runs.run(e, home=home, execution=LOOP, progress=False, wait=False, **more)


def only(home: Path) -> RunInfo:
    with Store.open(home) as store:
        (run,) = store.runs()
    return run


def test_a_courier_tracks_a_run_whose_precision_needs_a_gpu(home, monkeypatch):
    """It reads on the CPU. The run's GPU is a CPU under another name."""
    with monkeypatch.context() as patched:
        patched.setattr(choose, "device", lambda *_: torch.device("cpu"))
        go(experiment(**{"training.precision": "tf32"}), home)
    run = only(home)
    assert run.status == "FINISHED" and recording.FINISHED in run.metrics
    assert [path.name for path in (home / "requests").iterdir()] == ["log"]


def test_request_interrupted_while_it_is_written_leaves_no_draft(home, monkeypatch):
    """SIGTERM or Ctrl-C in that moment left a hidden folder in `requests/` for good."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(requests, "sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go(experiment(), home)
    assert not list((home / "requests").iterdir())


@pytest.mark.real_pictures
def test_a_courier_leaves_the_same_run_as_the_process_itself(home, tmp_path, furnish, monkeypatch):
    """All metrics but the clock's, all parameters, tags and artifacts; nothing of the request stays."""
    result = go(experiment(), home)
    assert result.run_id is None and result.page == "/experiment/digits-lsqs" and result.hash == experiment().digest()
    run = only(home)
    assert [path.name for path in (home / "requests").iterdir()] == ["log"]
    itself = furnish(tmp_path / "itself")
    other = runs.run(experiment(), home=itself, execution=LOOP, progress=False)
    again = only(itself)
    assert (run.name, run.experiment, run.status) == (again.name, again.experiment, "FINISHED")
    assert (run.params, run.identity) == (again.params, again.identity)
    assert {k: v for k, v in run.metrics.items() if k not in OWN} == {
        k: v for k, v in again.metrics.items() if k not in OWN
    }
    assert recording.FINISHED in run.metrics and result.final == other.final
    assert {k: v for k, v in run.tags.items() if "mlflow" not in k} == {
        k: v for k, v in again.tags.items() if "mlflow" not in k
    }
    assert run.tags.keys() == again.tags.keys()
    with Store.open(home) as store, Store.open(itself) as second:
        there = store.history(run.run_id, ["train/loss", "test/L1/local/mean"])
        assert there.equals(second.history(again.run_id, ["train/loss", "test/L1/local/mean"])) and len(there) == 4
        for artifact in ("config.yaml", "clients.parquet", "figures/accuracy.png", "models/personal.safetensors"):
            one, two = (s.download(r.run_id, artifact).read_bytes() for s, r in ((store, run), (second, again)))
            assert one == two, artifact


def test_a_long_run_is_in_mlflow_while_it_goes_on(home, monkeypatch):
    """Its courier starts in the middle; rounds are there before the last one is over."""
    monkeypatch.setattr(requests, "SHORT_RUN_SECONDS", 0.0)
    seen: list[tuple[str, int]] = []

    def look(record: Any) -> None:
        if record.round == 11:  # ten rounds are handed over at once
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and not seen:
                with Store.open(home, offline=True) as store:
                    seen.extend((run.status, len(store.history(run.run_id, ["train/lr"]))) for run in store.runs())
                    seen[:] = [one for one in seen if one[1] > 5]
                time.sleep(0.2)

    go(experiment(rounds=12), home, on_record=look)
    assert seen and seen[0][0] == "RUNNING"
    assert only(home).status == "FINISHED"


def test_the_simulating_process_imports_no_mlflow(home):
    code = (
        "import sys; from pfl_ops import runs; from pfl_ops.config.experiment import Experiment; "
        f"e = Experiment.of('fedavg', dataset='digits', model='linear', clients=3, rounds=1); "
        f"runs.run(e, home={str(home)!r}, progress=False, wait=False); "
        "print([name for name in ('mlflow', 'matplotlib', 'sqlalchemy', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "[]\n"
    assert only(home).status == "FINISHED"


KILLED = """
import os, signal, sys
from pfl_ops import runs
from pfl_ops.tracking.spools import requests
sys.path.insert(0, {tests!r})
from test_courier import LOOP, experiment

def kill(record):
    if record.round == {last}:
        os.kill(os.getpid(), signal.SIGKILL)

runs.run(experiment(), home={home!r}, execution=LOOP, progress=False, wait=False, on_record=kill, resume={resume})
"""


def killed_run(home: Path, last: int = 2, resume: bool = True) -> None:
    """Run in a process that is killed once round `last` is kept, before a courier begins."""
    code = KILLED.format(tests=str(Path(__file__).parent), home=str(home), last=last, resume=resume)
    done = subprocess.run([*fork_server.python(), "-c", code], capture_output=True, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_killed_run_is_killed_in_mlflow_too_and_goes_on(home):
    """No courier had begun: the next command that reads starts one. The run that goes on is the same one."""
    killed_run(home)
    assert len(requests.pending(WorkFolder(home))) == 1
    killed = only(home)
    assert killed.status == "KILLED" and recording.FINISHED not in killed.metrics
    with Store.open(home) as store:
        assert list(store.history(killed.run_id, ["train/lr"])["train/lr"].dropna().index) == [1, 2]
    go(experiment(), home)
    finished = only(home)
    assert (finished.run_id, finished.status) == (killed.run_id, "FINISHED")


@pytest.mark.parametrize("wait", [True, False])
def test_a_killed_run_that_goes_on_at_once_leaves_no_trace_of_the_kill(home, wait):
    """Its request is dropped, by whichever process tracks: it would mark the finished run as killed later."""
    killed_run(home)
    (folder,) = requests.pending(WorkFolder(home))
    runs.run(experiment(), home=home, execution=LOOP, progress=False, wait=wait)
    assert not folder.exists()
    run = only(home)
    assert (run.status, requests.pending(WorkFolder(home))) == ("FINISHED", [])
    with Store.open(home) as store:
        assert list(store.history(run.run_id, ["train/lr"])["train/lr"].dropna().index) == [1, 2, 3]


def assert_repeated_run_is_finished(home, monkeypatch):
    """Repeat a stopped run whose request waits, and deliver that request after the one of the repeated run."""
    (folder,) = requests.pending(WorkFolder(home))
    with monkeypatch.context() as patched:
        patched.setattr(requests, "settle", lambda *_: None)  # as if its courier failed once more
        go(experiment(), home)
    while len(requests.pending(WorkFolder(home))) > 1:
        time.sleep(0.05)
    requests.settle(WorkFolder(home))
    assert not folder.exists()
    run = only(home)
    assert (run.status, recording.FINISHED in run.metrics) == ("FINISHED", True)


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_stopped_run_that_a_courier_takes_up_late_stays_finished(home, monkeypatch, error, resume):
    """On a full disk its courier failed too. The run goes on, is over, and only then another courier takes it up.

    It marked the finished run as failed, and `compare` left it out. `resume`: of the run that was stopped.
    """

    def stop(record: Any) -> None:
        if record.round == 2:
            raise error

    if not resume:
        go(experiment(), home)
        requests.settle(WorkFolder(home))
    with monkeypatch.context() as patched:
        patched.setattr(requests, "start", lambda *_, **__: exec("raise OSError"))
        with pytest.raises((PflOpsError, KeyboardInterrupt)):
            go(experiment(), home, on_record=stop, resume=resume)
    assert_repeated_run_is_finished(home, monkeypatch)


def test_a_run_that_failed_at_its_last_write_and_is_repeated_is_finished(home, monkeypatch):
    """All rounds were on disk before the end. Its request was delivered last, and the finished run was FAILED."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(requests, "start", lambda *_, **__: exec("raise OSError"))
        patched.setattr(checkpoint.Checkpoints, "finish", full)
        with pytest.raises(PflOpsError):
            go(experiment(), home)
    assert_repeated_run_is_finished(home, monkeypatch)


def test_records_that_wait_in_a_moved_folder_are_named(home, caplog):
    """They are for the database at the old path, which no command uses here: nothing said so."""
    with Store.open(home) as store:
        store._delivery.stop()
        run = store.run("digits", "waiting", identity="w")
        run.spool.release()
        store._live.clear()
    moved = home.with_name("moved")
    shutil.copytree(home, moved)
    line = (
        f"records of a run wait in {moved / 'spool' / run.spool.folder.name} for sqlite:///{home / 'mlflow.db'}: was "
        "this work folder moved or copied? Repeat the commands of these runs, which record them here, and delete it"
    )
    go(experiment(), moved)
    assert line in caplog.messages
    caplog.clear()
    with Store.open(moved):
        assert caplog.messages == [line]
    caplog.clear()
    with Store.open(home):
        assert caplog.messages == []


def times(home: Path, run: RunInfo) -> list[int]:
    """The times of a tracked run's rounds, which tell computations apart."""
    with Store.open(home) as store:
        return [point.timestamp for point in store._sender.client.get_metric_history(run.run_id, "train/loss")]


@pytest.mark.parametrize("how", ["deleted", "killed anew"])
def test_a_run_that_is_computed_again_is_a_new_run(home, how):
    """Its checkpoint was deleted, or a run with --no-resume was killed and went on: MLflow has what is printed."""
    result = go(experiment(), home)
    first = only(home)
    if how == "deleted":
        shutil.rmtree(home / "checkpoints" / result.hash)
    else:
        killed_run(home, resume=False)
    go(experiment(), home)
    again = only(home)
    with Store.open(home) as store:
        assert [run.tags.get("pfl_ops.superseded") for run in store.runs(superseded=True)] == [again.run_id, None]
    kept = runs.records_of(WorkFolder(home), result.hash)
    assert first.run_id != again.run_id and again.status == "FINISHED"
    assert times(home, again) == [record.time for record in kept[1:]]


def test_a_computation_that_ends_at_its_start_changes_no_finished_run(home, monkeypatch):
    """The finished one was without its checkpoint; it was marked KILLED."""
    result = go(experiment(), home)
    first = only(home)
    shutil.rmtree(home / "checkpoints" / result.hash)
    monkeypatch.setattr(Simulation, "run", lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        go(experiment(), home)
    found = only(home)
    assert (found.run_id, found.status, requests.pending(WorkFolder(home))) == (first.run_id, "FINISHED", [])


def test_ctrl_c_and_divergence_are_noted(home):
    def stop(record: Any) -> None:
        if record.round == 1:
            raise KeyboardInterrupt

    begun = time.time()
    with pytest.raises(KeyboardInterrupt):
        go(experiment(), home, on_record=stop)
    over = time.time()
    with pytest.raises(runs.Diverged):
        go(Experiment.of("fedavg", dataset="digits", model="cnn_tiny", rounds=2, seed=1, lr=1e6, local_steps=20), home)
    with Store.open(home) as store:
        found = {run.params["seed"]: run for run in store.runs()}
    assert {seed: run.status for seed, run in found.items()} == {"0": "KILLED", "1": "FAILED"}
    assert begun <= found["0"].start / 1000 + 0.001 and found["0"].end / 1000 <= over  # not the courier's own times
    assert found["1"].tags[tag_names.DIVERGED].startswith("diverged at round ")


@pytest.mark.parametrize(("wait", "error"), [(True, KeyboardInterrupt), (False, KeyboardInterrupt), (True, ValueError)])
def test_a_finished_run_whose_reading_is_stopped_stays(home, wait, error):
    """It was marked KILLED or FAILED, so that comparisons left out the result that MLflow had."""

    def stop(record: Any) -> None:
        raise error

    go(experiment(), home)
    first = only(home)
    with pytest.raises(error):
        runs.run(experiment(), home=home, execution=LOOP, on_record=stop, wait=wait)
    found = only(home)
    assert (found.run_id, found.status, found.end) == (first.run_id, "FINISHED", first.end)


@pytest.mark.parametrize("wait", [True, False])
def test_a_run_without_scores_of_the_start_goes_on_as_itself(home, wait):
    """It was taken for another computation: going on, and each reading by a courier, made a new MLflow run."""
    e = experiment().override({"evaluation.stages": ("L2",)})

    def stop(record: Any) -> None:
        assert record.round or not record.metrics
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.run(e, home=home, execution=LOOP, on_record=stop, wait=wait)
    first = only(home)
    for _ in range(2):
        runs.run(e, home=home, execution=LOOP, progress=False, wait=wait)
        with Store.open(home) as store:
            assert [(run.run_id, run.status) for run in store.runs(superseded=True)] == [(first.run_id, "FINISHED")]


def test_a_process_killed_while_it_reads_a_finished_run_changes_nothing(home):
    go(experiment(), home)
    first = only(home)
    killed_run(home)
    assert len(requests.pending(WorkFolder(home))) == 1
    found = only(home)
    assert (found.run_id, found.status, found.end) == (first.run_id, "FINISHED", first.end)


@pytest.mark.parametrize("wait", [True, False])
def test_a_run_that_is_read_keeps_its_start_and_end(home, wait):
    """Its end became that of the last command that read it, so that MLflow's duration grew by hours."""
    go(experiment(), home)
    first = only(home)
    assert runs.run(experiment(), home=home, progress=False, wait=wait).origin.startswith("read")
    again = only(home)
    assert (again.run_id, again.start, again.end) == (first.run_id, first.start, first.end)


def test_the_same_run_again_waits_for_its_courier(home):
    """It is read; and one that is computed anew is a new run, the first one superseded."""
    first = go(experiment(), home)
    again = go(experiment(), home)
    assert again.origin.startswith(f"read: run {first.hash[:12]}")
    go(experiment(), home, resume=False)
    with Store.open(home) as store:
        assert [run.status for run in store.runs()] == ["FINISHED"]
        old, new = store.runs(superseded=True)
        assert old.tags["pfl_ops.superseded"] == new.run_id


def test_a_courier_says_which_process_it_is(home, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(requests, "start", lambda folders, **_: None)
        go(experiment(), home)
    (folder,) = requests.pending(WorkFolder(home))
    found = []
    monkeypatch.setattr("pfl_ops.courier._track", lambda request: found.append((request / "process").read_text()))
    monkeypatch.setattr("pfl_ops.system.child.lower_priority", lambda niceness: None)
    with pytest.raises(SystemExit):
        courier.track(0, str(folder))
    assert found == [str(os.getpid())] and not folder.exists()


def test_a_run_that_a_slow_courier_still_tracks_is_named(home, caplog, monkeypatch):
    """A command that reads and does not wait any longer says what it lacks; the run's own command, why it must wait.
    Both give the courier their own priority: at its low one it took longer than they wait."""
    with monkeypatch.context() as patch:
        patch.setattr(requests, "start", lambda folders, **_: None)
        result = go(experiment(), home)
    (folder,) = requests.pending(WorkFolder(home))
    hurried = []
    monkeypatch.setattr("pfl_ops.system.child.restore_priority", hurried.append)
    (folder / "process").write_text("123")
    with monkeypatch.context() as patch:
        patch.setattr(requests, "start", lambda folders, **_: None)
        requests.settle(WorkFolder(home), patience=0.0)
    assert hurried == [], "a courier that was killed"
    with FileLock(folder / "courier"), FileLock(home / "checkpoints" / f".{result.hash}.lock"):
        requests.settle(WorkFolder(home), patience=0.0)
        assert hurried == [123]
        assert f"run '{result.name}' is not in MLflow yet: another process still tracks it" in caplog.text
        with monkeypatch.context() as patch, pytest.raises(PflOpsError, match="is over, and another process still"):
            patch.setattr(requests, "settle", lambda *_: None)
            go(experiment(), home)


PLUGIN = """
from pfl_ops.algorithms.base import register
from pfl_ops.algorithms.fedavg import FedAvg

@register("own")
class Own(FedAvg):
    "One."

    def round(self, s, r):
        return super().round(s, r)
"""


def test_a_plug_in_is_tracked_as_it_was_loaded(home, tmp_path, monkeypatch):
    """In a loop of edits and runs the courier, which begins later, read the next edit: the run was in the checkpoints
    only. Where one courier tracked two of these runs, the second plug-in was refused: the first had its method's name.
    """
    file, hashes = tmp_path / "own.py", []
    (tmp_path / "own.txt").touch()
    read = "\nfrom pathlib import Path\nPath(__file__).with_name('own.txt').read_text()\n"  # of the copy there is none
    with monkeypatch.context() as patch:
        patch.setattr(requests, "start", lambda folders, **_: None)
        for factor in (1, 2):
            file.write_text(PLUGIN.replace('own"', 'own_edited"') + f"\nK = {factor}{read}", encoding="latin-1")
            registry.load_plugin(file)
            own = Experiment.of("own_edited", dataset="digits", model="linear", clients=3, rounds=1)
            hashes.append(go(own, home).hash)
    file.write_text("raise ValueError")
    with Store.open(home) as store:
        found = {(run.tags["pfl_ops.experiment_hash"], run.status) for run in store.runs()}
    assert found == {(one, "FINISHED") for one in hashes} and len(found) == 2
    assert requests.problems(WorkFolder(home)) == []


@pytest.mark.parametrize("then", ["edited", "removed"])
def test_modules_of_a_plug_in_are_tracked_as_they_were(home, tmp_path, monkeypatch, then):
    """The courier imported what their files held by then: the run was in the checkpoints only, and stayed there. One
    courier may track two runs that had other modules under the same names."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"own_parts_{then}").mkdir()
    (tmp_path / f"own_space_{then}" / "inner").mkdir(parents=True)  # packages without __init__.py
    helper, inner = tmp_path / f"own_helper_{then}.py", tmp_path / f"own_parts_{then}" / "__init__.py"
    leaf = tmp_path / f"own_space_{then}" / "inner" / "leaf.py"
    leaf.write_text("K = 1\n")
    inner.write_text("def half(x): return x / 2\n")
    helper.write_text(f"def f(x):\n    import own_parts_{then} as parts\n    return parts.half(x)\n")
    (tmp_path / "own.py").write_text(
        PLUGIN.replace('"own"', f'"own_with_{then}"').replace(" super", f" own_helper_{then}.f(0.0) or super")
        + f"\nimport own_helper_{then}\nfrom own_space_{then}.inner import leaf"
    )
    registry.load_plugin(tmp_path / "own.py")
    own = Experiment.of(f"own_with_{then}", dataset="digits", model="linear", clients=3, rounds=1)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "start", lambda folders, **_: None)
        results = [go(own, home)]
        inner.write_text("def half(x): return x / 3.0\n")  # another size: else Python may take the compiled file
        importlib.reload(sys.modules[f"own_parts_{then}"])
        results.append(go(own, home))
    for file in (helper, inner, leaf):
        if then == "edited":
            file.write_text("raise ValueError")
        else:
            file.unlink()
    if then == "removed":
        shutil.rmtree(leaf.parents[1])
    with Store.open(home) as store:
        found = {(run.tags["pfl_ops.experiment_hash"], run.status) for run in store.runs()}
    assert found == {(result.hash, "FINISHED") for result in results} and len(found) == 2


@pytest.mark.parametrize("own", ["a value from outside", "no plug-in"])
def test_code_that_a_courier_can_not_import_is_tracked_by_the_process_itself(home, tmp_path, monkeypatch, own):
    """The courier refused the run, which was in the checkpoints only, and so did each command after it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ALGORITHMS, "_found", {})
    (tmp_path / "own_value.py").write_text("K = 1\n")
    (tmp_path / "own_code.py").write_text(f"import own_value\n{PLUGIN.replace('own', 'own_code')}")
    if own == "no plug-in":
        importlib.import_module("own_code")
    else:
        registry.load_plugin(tmp_path / "own_code.py")
        monkeypatch.setattr(sys.modules["own_value"], "K", 2)
    monkeypatch.setattr(requests, "start", pytest.fail)
    go(Experiment.of("own_code", dataset="digits", model="linear", clients=3, rounds=1), home)
    assert only(home).status == "FINISHED"


@pytest.mark.parametrize("then", ["edited", "removed"])
def test_a_run_is_tracked_with_the_partition_and_weights_that_it_had(home, tmp_path, monkeypatch, then):
    """A sweep that writes them anew before each run, in a temporary folder, say, lacked all runs but the last one."""
    first = experiment().build()
    partition = partition_files.write_partition(tmp_path / "partition", first.clients.recorded)
    files = [*partition.iterdir(), tmp_path / "start.pth"]
    torch.save({"head.weight": torch.ones(10, 64), "head.bias": torch.zeros(10)}, files[-1])
    own = experiment(
        partition=f"file:{partition / 'partition.json'}", clients=None, **{"model.weights": str(files[-1])}
    )
    with monkeypatch.context() as patch:
        patch.setattr(requests, "start", lambda folders, **_: None)
        result = go(own, home)
    for file in files:
        if then == "edited":
            file.write_text("[]")
        else:
            file.unlink()
    run = only(home)
    assert run.status == "FINISHED" and run.tags["pfl_ops.experiment_hash"] == result.hash
    assert run.params["partition.path"] == str(partition / "partition.json")
    with pytest.raises(PflOpsError, match=r"recorded partition|weights"):
        own.digest()


@pytest.mark.parametrize("then", ["edited", "removed"])
def test_a_run_is_tracked_with_the_data_that_it_had(home, tmp_path, monkeypatch, then):
    """As a loop that writes its data into one file, runs, and writes them again."""
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    file, draws = tmp_path / "mine.npz", np.random.default_rng(0)

    def write() -> None:
        parts = {"train": 60, "test": 30}
        x = {f"x_{part}": draws.normal(size=(n, 4)).astype(np.float32) for part, n in parts.items()}
        np.savez(file, **x, **{f"y_{part}": np.arange(n) % 3 for part, n in parts.items()})

    write()
    given = {"model": "linear", "clients": 3, "rounds": 1, "partition": "iid"}
    own = Experiment.of("fedavg", dataset=str(file), **given)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "start", lambda folders, **_: None)
        result = go(own, home)
    if then == "edited":
        write()
        assert own.digest() != result.hash
    else:
        file.unlink()
    run = only(home)
    assert run.status == "FINISHED" and run.tags["pfl_ops.experiment_hash"] == result.hash


def test_a_request_that_fails_stays_with_its_reason(home, tmp_path, caplog, monkeypatch):
    """Its checkpoint was moved away: nothing is computed in the background. Once it is back, the run is tracked.
    Another request is not kept waiting."""
    with monkeypatch.context() as patch:
        patch.setattr(requests, "start", lambda folders, **_: None)
        result = go(Experiment.of("fedavg", dataset="digits", model="linear", clients=3, rounds=1), home)
    (home / "checkpoints" / result.hash).rename(tmp_path / "away")
    go(experiment(), home)
    assert only(home).params["algorithm.name"] == "fliu"
    (line,) = requests.problems(WorkFolder(home))
    assert line.startswith(
        "run 'fedavg clients=3 model=linear rounds=1 seed0' is not in MLflow yet: its checkpoint was removed"
    )
    assert line in caplog.text
    (folder,) = requests.pending(WorkFolder(home))
    assert json.loads((folder / "request.json").read_text())["digest"] == result.hash
    (tmp_path / "away").rename(home / "checkpoints" / result.hash)
    with Store.open(home) as store:
        assert {run.params["algorithm.name"]: run.status for run in store.runs()} == {
            "fliu": "FINISHED", "fedavg": "FINISHED",
        }  # fmt: skip
    assert requests.problems(WorkFolder(home)) == []


def test_a_courier_waits_for_a_look_at_its_lock(tmp_path, monkeypatch):
    """Another command that looks (`is_locked`) takes the lock for a moment. The courier skipped the request."""
    (tmp_path / requests.REQUEST).touch()
    tracked = []
    monkeypatch.setattr(courier, "_track", tracked.append)
    monkeypatch.setattr(courier, "PROBE_SECONDS", 60.0)
    look = FileLock(tmp_path / requests.LOCK, thread_local=False)
    look.acquire()
    threading.Timer(0.1, look.release).start()
    with pytest.raises(SystemExit):
        courier.track(0, str(tmp_path))
    assert tracked == [tmp_path]


def test_two_looks_at_a_lock_do_not_take_each_other_for_its_holder(tmp_path):
    """A command that looked while the courier did took the run for one that goes on, and did not wait for it."""
    file = tmp_path / requests.OWNER
    assert not requests.is_locked(file)
    file.touch()
    with file.open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        assert not requests.is_locked(file)
    with FileLock(file):
        assert requests.is_locked(file)
    assert not requests.is_locked(file)


def test_a_courier_leaves_a_request_to_another_one(tmp_path, monkeypatch):
    (tmp_path / requests.REQUEST).touch()
    monkeypatch.setattr(courier, "_track", pytest.fail)
    with FileLock(tmp_path / requests.LOCK), pytest.raises(SystemExit):
        courier.track(0, str(tmp_path))
    assert tmp_path.exists()


def test_couriers_of_runs_that_are_over_take_turns(tmp_path, monkeypatch):
    """Ten repetitions of a second each had ten couriers at once, of 0.4 GiB each. That of a run which goes on waits for
    none."""
    folder = tmp_path / "requests" / "one"
    folder.mkdir(parents=True)
    (folder / requests.REQUEST).touch()
    tracked = threading.Event()
    monkeypatch.setattr(courier, "_track", lambda _: tracked.set())
    monkeypatch.setattr(requests, "remove", lambda _: None)
    others = [FileLock(tmp_path / f".courier-{n}.lock", thread_local=False) for n in range(courier.AT_ONCE)]
    for lock in others:
        lock.acquire()
    with FileLock(folder / requests.OWNER), pytest.raises(SystemExit):
        courier.track(0, str(folder))
    assert tracked.is_set()
    tracked.clear()
    now = [0.0]

    def sleep(_: float) -> None:
        assert not tracked.is_set() and requests.is_locked(folder / requests.LOCK)
        now[0] += 20
        for lock in freed:
            lock.release()

    monkeypatch.setattr(courier, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    freed: list[FileLock] = []
    for waited in (40, 60):  # first the others hang: it waits no longer than half a minute
        with pytest.raises(SystemExit):
            courier.track(0, str(folder))
        assert tracked.is_set() and now == [waited]
        tracked.clear()
        freed.append(others[1])
    with FileLock(tmp_path / ".courier-1.lock", timeout=0):
        pass  # given back


def test_a_command_waits_while_couriers_before_its_own_come_to_an_end(tmp_path, caplog, monkeypatch):
    """Two others end after 60 and 90 s, its own after 120 s: no minute is without an end."""
    folders = [tmp_path / "requests" / f"{n}-{digest:012d}-x" for n, digest in enumerate((7, 8, 9))]
    locks = [FileLock(folder / requests.LOCK) for folder in folders]
    for folder, lock in zip(folders, locks, strict=True):
        folder.mkdir(parents=True)
        (folder / requests.REQUEST).touch()
        (folder / requests.END).touch()
        lock.acquire()
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += 30
        for folder, lock, end in zip(folders, locks, (60, 90, 120), strict=True):
            if now[0] == end:
                lock.release()
                shutil.rmtree(folder)

    monkeypatch.setattr(requests, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    requests.settle(WorkFolder(tmp_path), f"{9:012d}")
    assert now == [120] and not caplog.messages


def test_a_request_of_another_user_is_refused(home, monkeypatch, tmp_path):
    """It could name a plug-in, which is code. Without the checkpoint nothing is computed in the background either."""
    with monkeypatch.context() as patch:
        patch.setattr(requests, "start", lambda folders, **_: None)
        go(experiment(), home)
    (folder,) = requests.pending(WorkFolder(home))
    file, text = folder / "request.json", (folder / "request.json").read_text()
    file.write_text(json.dumps(json.loads(text) | {"plugins": [f"{tmp_path}/theirs.py"]}))
    (tmp_path / "theirs.py").write_text(f"open('{tmp_path}/was-run', 'w')")
    with Store.open(home) as store:
        assert store.runs() == []
    (line,) = requests.problems(WorkFolder(home))
    assert "another user or machine made it" in line and not (tmp_path / "was-run").exists()
    file.write_text(text)
    shutil.rmtree(home / "checkpoints" / experiment().digest())
    with Store.open(home) as store:
        assert store.runs() == []
    (line,) = requests.problems(WorkFolder(home))
    assert "its checkpoint was removed; the same command computes it again" in line
    assert not (home / "checkpoints" / experiment().digest()).exists()


def test_a_damaged_request_is_named_and_can_be_removed(home):
    go(experiment(), home)
    only(home)
    folder = home / "requests" / "0-0123456789ab-00000000"
    folder.mkdir()
    (folder / "request.json").write_text('{"experiment": ')
    assert only(home).status == "FINISHED"
    (line,) = requests.problems(WorkFolder(home))
    assert f"remove {folder}" in line
    shutil.rmtree(folder)
    assert requests.problems(WorkFolder(home)) == []


def test_a_server_or_the_variable_leaves_no_request(home, tmp_path, monkeypatch):
    elsewhere = f"sqlite:///{tmp_path}/other.db"
    assert requests.is_possible(WorkFolder(home), None) and not requests.is_possible(WorkFolder(home), elsewhere)
    assert not requests.is_possible(WorkFolder(home), "http://127.0.0.1:1")
    monkeypatch.setenv("PFL_OPS_COURIER", "off")
    assert go(experiment(), home).run_id is not None
    assert not (home / "requests").exists()


def test_a_file_that_is_no_database_is_refused_before_the_run(home):
    (home / "mlflow.db").write_text("no database at all " * 100)
    with pytest.raises(runs.PflOpsError, match="can't be used"):
        go(experiment(), home)
    assert not (home / "requests").exists()
