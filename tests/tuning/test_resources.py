"""What a trial may use: errors that say what to use, instead of a trial that waits for ever."""

import os
import subprocess
import sys

import pytest

from pfl_ops.errors import PflOpsError
from pfl_ops.tuning import resources


@pytest.fixture
def machine(monkeypatch):
    """A Ray with the given nodes, without Ray."""

    def make(*nodes):
        total = {k: sum(n.get(k, 0) for n in nodes) for n in nodes for k in n}
        monkeypatch.setattr(resources.ray, "cluster_resources", lambda: total)
        monkeypatch.setattr(resources.ray, "nodes", lambda: [{"Alive": True, "Resources": n} for n in nodes])

    return make


def test_a_share_of_a_gpu_that_is_not_there_is_refused_before_ray_starts(monkeypatch):
    import torch

    monkeypatch.setattr(resources.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        PflOpsError, match=r"--gpus-per-trial 0\.25: this machine has no GPU; leave it out \(or give 0\)"
    ):
        resources.check_gpus(0.25, None)
    resources.check_gpus(None, None)
    resources.check_gpus(0.0, None)
    resources.check_gpus("auto", None)  # measured, or there is none
    resources.check_gpus(0.25, "auto")  # the cluster's business
    monkeypatch.setenv(resources.LOGICAL_GPUS, "1")
    resources.check_gpus(0.25, None)


def test_as_many_trials_as_fit(machine):
    machine({"CPU": 4.0, "GPU": 1.0})
    assert resources.share(1, 0, None, 12) == resources.Share(1, 0, 4)
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
        (1, 0, None, "cuda", "device cuda needs a share of a GPU: --gpus-per-trial 0.25"),
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
    monkeypatch.setattr(resources.tempfile, "tempdir", str(deep))
    folder = resources._short_folder()
    folder.rmdir()
    assert len(os.fsencode(folder)) + resources.SESSION <= resources.SOCKET_PATH


def test_libraries_keep_quiet():
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] == "1"


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
    code = "import sys, pfl_ops.tuning.trial, pfl_ops.runs; sys.exit(bool({'optuna', 'mlflow'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
