"""The resources that a trial may use: errors that say what to use, instead of a trial that waits for ever."""

import os
import subprocess
import sys
from collections.abc import Callable

import fork_server
import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Device, Execution
from pfl_ops.jobs import ray_instance, resources
from pfl_ops.system.scratch import scratch
from pfl_ops.tuning.resources.resource_request import ResourceRequest, check_request


@pytest.fixture
def machine(monkeypatch):
    """A Ray with the given nodes, without Ray."""

    def make(*nodes):
        monkeypatch.setattr(resources.ray, "is_initialized", lambda: True)
        monkeypatch.setattr(resources.ray, "nodes", lambda: [{"Alive": True, "Resources": n} for n in nodes])

    return make


@pytest.fixture
def alone(monkeypatch):
    """No Ray, and a machine with two cores and so many GPUs."""

    def make(gpus=0):
        monkeypatch.setattr(resources.ray, "is_initialized", lambda: False)
        monkeypatch.setattr(resources.cores, "usable", lambda: 2)
        monkeypatch.setattr(resources, "_gpus", lambda: gpus)

    return make


IMPOSSIBLE = [
    ({"cpus": 64}, "auto", "this machine does not have 64 CPUs for one trial; use --cpus-per-trial 2 or less"),
    ({"cpus": 1e308}, "auto", "this machine does not have 1e+308 CPUs for one trial"),
    ({"gpus": 0.25}, "auto", "--gpus-per-trial 0.25: this machine has no GPU; leave it out (or give 0)"),
    ({"gpus": 1}, "auto", "--gpus-per-trial 1: this machine has no GPU"),
    ({"gpus": 0.25}, "cpu", "device cpu and --gpus-per-trial 0.25 contradict each other"),
]


@pytest.mark.parametrize(("asked", "device", "message"), IMPOSSIBLE)
def test_a_request_is_checked_before_ray_starts(alone, asked, device, message):
    alone()
    with pytest.raises(PflOpsError) as caught:
        check_request(ResourceRequest.of(**asked), device, None)
    assert str(caught.value).startswith(message)


def test_a_request_that_can_be_met_passes(alone):
    alone()
    for asked in ({}, {"cpus": 2}, {"gpus": 0}, {"cpus": "auto"}, {"gpus": "auto"}, {"concurrency": 10**30}):
        check_request(ResourceRequest.of(**asked), "auto", None)
    alone(gpus=1)
    check_request(ResourceRequest.of(gpus=0.25), "auto", None)
    check_request(ResourceRequest.of(gpus=1), "auto", None)


@pytest.mark.parametrize(
    "address", ["nonsense", "host", "local", "host:", ":6379", "host:0", "host:65536", "a b:1", "x://h:1", "h:1:2", ""]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(PflOpsError, match=r"--address is auto or HOST:PORT, with a port from 1 to 65535, got '"):
        resources.check_address(address)


def test_as_many_trials_as_fit(machine):
    machine({"CPU": 4.0, "GPU": 1.0})
    assert resources.share(1, 0, None, 12) == resources.ResourceShare(1, 0, 4)
    assert resources.share(1, 0.25, None, 12).concurrency == 4
    assert resources.share(2, 0.25, None, 12).concurrency == 2
    assert resources.share(0.5, 0.25, None, 12).concurrency == 4
    assert resources.share(1, 0.3, None, 12).concurrency == 3
    assert resources.share(1, 0, 2, 12).concurrency == 2
    assert resources.share(1, 0, 9, 12).concurrency == 4
    assert resources.share(1, 0, None, 3).concurrency == 3


def test_a_quarter_of_a_gpu_where_there_is_one_and_nothing_is_said(machine):
    machine({"CPU": 4.0, "GPU": 1.0})
    assert resources.share(1, None, None, 12).gpus == 0.25
    assert resources.share(1, None, None, 12, "cpu").gpus == 0
    machine({"CPU": 4.0})
    assert resources.share(1, None, None, 12).gpus == 0


def test_gpus_of_several_machines_are_no_trials(machine):
    """The line was on CPUs, of which there are enough."""
    machine({"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0})
    with pytest.raises(PflOpsError, match=r"^--gpus-per-trial 2: no machine of this Ray has so many GPUs; .*: use 1 "):
        resources.share(None, 2, None, 12)
    assert resources.share(None, 1, None, 12) == resources.ResourceShare(8, 1, 2)


@pytest.mark.parametrize(
    ("gpus", "jobs", "expected"),
    [(1, 1, 1), (1, 2, 1 / 2), (1, 3, 1 / 3), (1, 9, 1 / 4), (2, 3, 1 / 2), (2, 9, 1 / 4), (8, 4, 1), (8, 9, 1 / 2)],
)
def test_jobs_share_no_more_gpus_than_they_have_to(machine, gpus, jobs, expected):
    """Ray fills a GPU before the next: four quarters left seven of eight idle, and two used half of the memory."""
    machine({"CPU": 64.0, "GPU": float(gpus)})
    assert resources.gpu_share(jobs, "auto") == pytest.approx(expected)
    assert resources.share(1, expected, None, jobs).concurrency == min(jobs, 4 * gpus)
    assert resources.gpu_share(jobs, "cpu") is None
    machine({"CPU": 64.0})
    assert resources.gpu_share(jobs, "auto") is None


def test_cores_go_with_the_share_of_a_gpu_where_nothing_is_said(machine):
    machine({"CPU": 16.0, "GPU": 1.0})
    assert resources.share(None, 0.25, None, 12) == resources.ResourceShare(4, 0.25, 4)
    assert resources.share(None, None, None, 12).cpus == 4
    assert resources.share(None, 1, None, 12).threads == 16
    assert resources.share(None, 0.3, None, 12) == resources.ResourceShare(4, 0.3, 3)  # of 4.8
    assert resources.share(2, 0.25, None, 12).cpus == 2
    assert resources.share(None, None, None, 12, "cpu") == resources.ResourceShare(1, 0, 12)
    machine({"CPU": 16.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 2.0}, {"CPU": 64.0})
    assert resources.share(None, 0.5, None, 12) == resources.ResourceShare(2, 0.5, 6)  # the second machine's
    machine({"CPU": 2.0, "GPU": 1.0})
    assert resources.share(None, 0.25, None, 12) == resources.ResourceShare(1, 0.25, 2)


@pytest.mark.parametrize(
    ("asked", "device", "at_once", "estimated"),
    [
        ({}, "auto", 4, ("auto", 4)),
        ({}, "cuda", 4, ("cuda", 4)),
        ({}, "cpu", 16, ("cpu", 1)),
        ({"gpus": 0.5}, "auto", 2, ("auto", 8)),
        ({"gpus": 0.25, "cpus": 2}, "auto", 4, ("auto", 2)),
        ({"gpus": 0, "cpus": 3}, "auto", 5, ("cpu", 3)),
        ({"concurrency": 64}, "cpu", 16, ("cpu", 1)),
        ({"concurrency": 3}, "auto", 3, ("auto", 4)),
    ],
)
def test_estimate_counts_the_trials_and_threads_that_run(
    machine: Callable[..., None], asked: dict[str, float], device: Device, at_once: int, estimated: tuple[str, int]
) -> None:
    """16 cores and a GPU: it was 16 trials at once on the GPU, of a thread each, and 64 on the cores."""
    machine({"CPU": 16.0, "GPU": 1.0})
    request = ResourceRequest.of(**asked)
    assert request.at_once(20, device) == at_once == request.share(20, device).concurrency
    found = request.estimated(Execution(device=device))
    assert (found.device, found.threads) == estimated
    assert found.threads == request.share(1, device).threads
    assert request.estimated(Execution(device=device, threads=7)).threads == 7


def test_estimate_of_what_this_machine_lacks_has_the_threads_asked_for(alone: Callable[..., None]) -> None:
    """A cluster that is joined later may have it. That cuda is missing is said by the run that is measured."""
    alone()
    for asked, threads in (({"cpus": 8, "gpus": 0.25}, 8), ({"cpus": 8}, 8), ({"gpus": 1}, 1)):
        assert ResourceRequest.of(**asked).estimated(Execution()) == Execution(threads=threads)
    assert ResourceRequest.of().estimated(Execution(device="cuda")) == Execution(device="cuda", threads=1)
    assert ResourceRequest.of().at_once(9, "cuda") == 2


def test_a_trial_lies_on_one_machine_and_its_share_on_one_gpu(machine):
    machine({"CPU": 2.0}, {"CPU": 2.0, "GPU": 2.0})
    assert resources.share(2, 0, None, 12).concurrency == 2
    assert resources.share(0.1, 0.6, None, 12).concurrency == 2  # not 2 / 0.6 = 3
    with pytest.raises(
        PflOpsError, match=r"no machine of this Ray has 3 CPUs for one trial; use --cpus-per-trial 2 or"
    ):
        resources.share(3, 0, None, 12)


@pytest.mark.parametrize(
    ("cpus", "gpus", "concurrency", "device", "message"),
    [
        (1, 0.5, None, "auto", "--gpus-per-trial 0.5: this Ray has no GPU"),
        (1, 0, None, "cuda", "device cuda is not there: this Ray has no GPU; use --device cpu"),
        (1, 0.25, None, "cpu", "contradict each other"),
    ],
)
def test_what_can_t_be_is_said(machine, cpus, gpus, concurrency, device, message):
    machine({"CPU": 2.0})
    with pytest.raises(PflOpsError) as caught:
        resources.share(cpus, gpus, concurrency, 12, device)
    assert message in str(caught.value)


def test_ray_s_folder_is_short_whatever_the_temporary_folder_is(tmp_path, monkeypatch):
    """A socket's path may have 107 bytes; pytest's tmp_path alone has 80."""
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    monkeypatch.setattr(ray_instance.tempfile, "tempdir", str(deep))
    with scratch(ray_instance.short_folder()) as folder:
        socket = str(folder / ray_instance.INNER) + "/session_2026-11-22_13-16-24_128906_1234567/sockets/plasma_store"
    assert len(os.fsencode(socket)) <= 107


def test_libraries_keep_quiet():
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] == "1"


IN_A_NOTEBOOK = """
import sys, types

class ZMQInteractiveShell:
    events = types.SimpleNamespace(register=lambda *_: None)

sys.modules["IPython"] = types.SimpleNamespace(get_ipython=ZMQInteractiveShell)
import pfl_ops.jobs
"""


def test_ray_does_not_ask_a_notebook_for_ipywidgets():
    """Ray printed "Missing packages: ['ipywidgets']. Run `pip install -U ipywidgets`, ..." when it was imported."""
    made = subprocess.run([sys.executable, "-c", IN_A_NOTEBOOK], capture_output=True, text=True, check=True)
    assert "ipywidgets" not in made.stdout + made.stderr


def test_no_cluster_at_an_address(monkeypatch):
    """Ray itself would try for some minutes."""
    monkeypatch.setattr(resources.ray, "is_initialized", lambda: False)
    with (
        pytest.raises(PflOpsError, match=r"no Ray cluster answers at '127\.0\.0\.1:1'"),
        resources.cluster("127.0.0.1:1"),
    ):
        pass


def test_a_trial_s_process_starts_without_optuna_and_mlflow():
    """Each costs a second and memory in every process; a trial imports `runs` for its rounds."""
    code = (
        "import sys, pfl_ops.jobs.process, pfl_ops.jobs.work, pfl_ops.runs; "
        "sys.exit(bool({'optuna', 'mlflow'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


STARTS, CONNECTED, ELSEWHERE, RUNS, STOPPED = (
    "node.Node.start_head_processes = lambda self: terminate()",
    "connect = worker.connect; worker.connect = lambda *a, **k: (connect(*a, **k), terminate())",
    "connect = worker.connect; worker.connect = lambda *a, **k: (connect(*a, **k), elsewhere())",
    "during = terminate",
    "after = terminate",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [STARTS, CONNECTED, ELSEWHERE, RUNS, STOPPED],
    ids=["starts", "connected", "elsewhere", "runs", "stopped"],
)
def test_sigterm_is_ctrl_c_at_every_moment(moment):
    """Ray itself would set handlers that exit with the signal's number, exit with 1, or print a stack and abort; and
    leave none at its end. Elsewhere: another thread gets the signal, whose handler, Ray's, starts a timer that aborts
    after 3 s."""
    code = f"""if 1:
        import signal, sys, threading, time
        from ray._private import node, worker
        from pfl_ops.cli.termination import sigterm_as_ctrl_c
        from pfl_ops.jobs import ray_instance

        def terminate():
            signal.raise_signal(signal.SIGTERM)

        elsewhere_too = {moment == ELSEWHERE}

        def elsewhere():
            signal.pthread_kill(thread.ident, signal.SIGTERM)

        thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
        thread.start()  # before Ray's start, in which this one alone lets the signal through

        def during():
            pass

        after = during

        @sigterm_as_ctrl_c
        def main():
            before = signal.getsignal(signal.SIGTERM)
            try:
                with ray_instance.started(1, 0):
                    during()
                after()
            except KeyboardInterrupt:
                time.sleep(4 * elsewhere_too)
                sys.exit(130 if signal.getsignal(signal.SIGTERM) is before else "another handler is left")

        {moment}
        main()
    """
    done = subprocess.run([*fork_server.python(), "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 143
    assert moment == ELSEWHERE or "SIGTERM" not in done.stderr  # what Ray prints there can't be prevented


def test_jobs_find_a_gpu_that_the_command_no_longer_uses(monkeypatch):
    """An estimate leaves gigabytes in PyTorch's cache; four jobs with a quarter each want them."""
    released = []
    monkeypatch.setattr(resources, "release", lambda: released.append(True))
    with pytest.raises(PflOpsError, match="--address"), resources.cluster("nowhere"):
        pass
    assert released == [True]
