"""Real processes that train digits side by side, and what becomes of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fork_server
import psutil
import pytest

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.probe import Probe, ProbeOutOfMemory, processes
from pfl_ops.registry import load_plugin
from pfl_ops.system import child
from pfl_ops.system.hosting import ProcessDeath

HERE = Path(__file__).parent
LOOP = Execution(device="cpu", way="loop", threads=1)


def tiny(method="fedavg", **settings):
    load_plugin(HERE / "misbehaves.py")
    return Experiment.of(method, clients=4, **{"evaluation.split": "validation", **settings})


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PFL_OPS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def children():
    return {p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}


@pytest.mark.slow
def test_processes_train_together_and_are_gone_afterwards():
    before = children()
    with Probe(tiny(), 2, data_dir=None, stages=["L1"]) as probe:
        settled = probe.resolve(Execution(device="cpu", threads=1))
        assert settled.way in ("loop", "vmap") and settled.workers == 1
        one = probe.speed(1, settled, seconds=0.2)
        two = probe.speed(2, settled, seconds=0.2)
        assert len(children() - before) == 2
        again = probe.speed(1, LOOP, seconds=0.2)
    assert not children() - before
    assert one.rate > 0 and two.rate > 0 and again.rate > 0
    assert two.room is None  # a CPU
    assert 100 << 20 < one.peak <= two.peak < 3 << 30  # bytes: an interpreter with PyTorch, and little else


def test_rounds_that_take_long_are_cut_short_and_say_how_many_samples_they_saw(monkeypatch):
    """In this process, with nobody to talk to: what one of them does."""
    from pfl_ops.probe import inside

    experiment = tiny("misbehaves", **{"training.local_epochs": 3})
    trial = inside.Trial(inside.ProbedExperiment(experiment.resolved, None, ("L1",)))
    monkeypatch.setattr(inside, "A_ROUND", 600.0)  # not even on a busy machine
    trial.prepare(LOOP, 0.0)
    n_train = 1438 - 288  # digits' training samples, a fifth of each client's held out
    assert trial.another() == pytest.approx(3 * n_train, abs=30)  # a whole round, three epochs

    monkeypatch.setattr(inside, "A_ROUND", 0.0)
    trial.prepare(LOOP, 0.0)
    assert trial.another() == pytest.approx(4 * 50)  # one step of each client

    # a rate at which training diverges is no reason to stop: only speed is measured
    experiment = tiny("misbehaves", **{"training.lr": 1e6, "training.rounds": 5})
    trial = inside.Trial(inside.ProbedExperiment(experiment.resolved, None, ("L1",)))
    monkeypatch.setattr(inside, "A_ROUND", 600.0)
    trial.prepare(LOOP, 0.0)
    assert [trial.another() for _ in range(3)] == pytest.approx([n_train] * 3, abs=30)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
@pytest.mark.parametrize(
    ("accident", "error", "message"),
    [
        ("memory", ProbeOutOfMemory, r"^CUDA out of memory\. Tried to allocate 2\.00 GiB$"),
        ("killed", ProbeOutOfMemory, "^a process was killed, as the system does when memory runs out$"),
        (
            "error",
            PflOpsError,
            r"^method 'misbehaves' failed in round 1: ZeroDivisionError: a bug of the method \(misbehaves\.py:\d+\)$",
        ),
        ("exit", ProcessDeath, "^a child process died: exit 3$"),
    ],
)
def test_what_happens_to_one_of_two_is_told(accident, error, message, tmp_path):
    experiment = tiny("misbehaves", **{"algorithm.accident": accident, "algorithm.folder": str(tmp_path)})
    before = children()
    with pytest.raises(PflOpsError, match=message) as caught, Probe(experiment, 2, data_dir=None) as probe:
        assert probe.speed(1, LOOP, seconds=0.1).rate > 0  # alone it works
        probe.speed(2, LOOP, seconds=0.1)
    assert type(caught.value) is error
    deadline = time.monotonic() + 30
    while children() - before:  # the fork server ends a fork when it sees that its client is gone
        assert time.monotonic() < deadline, "a measuring process is left"
        time.sleep(0.05)


def test_processes_that_can_t_begin_say_why(monkeypatch):
    monkeypatch.setattr(child.sys, "path", [])  # not even this package is found
    with (
        pytest.raises(PflOpsError, match=r"a child process died: .*Error"),
        Probe(tiny(), 1, data_dir=None) as probe,
    ):
        probe.resolve(LOOP)


def test_one_that_never_answers_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.0)
    before = children()
    with pytest.raises(PflOpsError, match="no answer for 0 s"), Probe(tiny(), 1, data_dir=None) as probe:
        probe.resolve(LOOP)
    assert not children() - before


def test_test_data_stay_closed():
    with pytest.raises(PflOpsError, match=r"evaluation\.split=validation; test data stay closed"):
        Probe(Experiment.of("fedavg"), 1, data_dir=None)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
def test_they_end_with_their_parent(end):
    code = f"""
import signal, sys; sys.path[:] = {sys.path!r}
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.settings import Execution
from pfl_ops.probe import Probe
experiment = Experiment.of("fedavg", clients=4, **{{"evaluation.split": "validation"}})
with Probe(experiment, 2, data_dir=None) as probe:
    loop = Execution(device="cpu", way="loop", threads=1)
    probe.speed(1, loop, seconds=0.1)
    print(*(p._process.pid for p in probe._processes), flush=True)
    probe.speed(2, loop, seconds=600.0)
"""
    with subprocess.Popen(
        [*fork_server.python(), "-c", code], env=fork_server.with_children(os.environ), process_group=0,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(psutil.pid_exists, pids))
        os.killpg(parent.pid, end) if end == signal.SIGINT else parent.send_signal(end)
    deadline = time.monotonic() + 30
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process outlived its parent"
        time.sleep(0.05)


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
