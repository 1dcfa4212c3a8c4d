"""Repetitions side by side: the same values, runs and ends as one after another."""

from contextlib import nullcontext

import numpy as np
import pytest
from nodes_work import begun, slowly

from pfl_ops import runs
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs import repeat as module
from pfl_ops.jobs import resources, runner
from pfl_ops.jobs.repeat import repeat
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.tracking import Store

pytestmark = pytest.mark.slow

HOW = Execution(device="cpu", way="loop", workers=1, threads=1)


def experiment(**settings: object) -> Experiment:
    return Experiment.of(
        "fedavg", dataset="digits", model="linear", clients=4, rounds=2, local_steps=2, repetitions=3, **settings
    )


def test_repetitions_at_once_are_those_one_by_one(one_ray, tmp_path, furnish, monkeypatch):
    """The second is finished before: it is read, and its process is never started."""
    monkeypatch.setattr(runner, "simulate", slowly)
    home, seen = furnish(tmp_path / "home"), []
    runs.run(experiment().repetition(1), home=home, execution=HOW, progress=False)
    found = repeat(experiment(), home=home, execution=HOW, on_record=lambda seed, one: seen.append((seed, one.round)))
    assert [result.experiment.seed for result in found.results] == [0, 1, 2] and not found.diverged
    assert sorted(seen) == [(seed, round_) for seed in (0, 2) for round_ in (0, 1, 2)]
    assert begun(home) == {found.results[i].experiment.digest(): 1 for i in (0, 2)}
    assert [bool(result.origin) for result in found.results] == [False, True, False]  # "read: ..."
    alone = furnish(tmp_path / "alone")
    for result in found.results:
        single = runs.run(result.experiment, home=alone, execution=HOW, progress=False)
        assert result.final == single.final
        assert result.rounds["test/L1/local/mean"].equals(single.rounds["test/L1/local/mean"])
    with Store.open(home) as store:
        assert [run.status for run in store.runs()] == ["FINISHED"] * 3


@pytest.mark.parametrize(("concurrency", "expected"), [(None, 1 / 3), (2, 1 / 2), (1, 1)])
def test_repetitions_at_once_share_all_of_a_gpu(concurrency, expected, tmp_path, furnish, monkeypatch):
    """Three of them, or as many as run at once, with the cores of its machine. Another machine has more cores and none.

    Ray is not started: it ends where the share is known.
    """

    def ends(*asked):
        part = resources.share(*asked)
        raise PflOpsError(f"{part.cpus:g} CPUs, {part.gpus:.3f} of a GPU, {part.concurrency} at once")

    for one in (module, resources):
        monkeypatch.setattr(one, "nodes", lambda: [{"CPU": 12.0, "GPU": 1.0}, {"CPU": 64.0}])
    monkeypatch.setattr(module, "cluster", lambda address: nullcontext(tmp_path))
    monkeypatch.setattr(module, "share", ends)
    with pytest.raises(
        PflOpsError, match=f"^{12 * expected:g} CPUs, {expected:.3f} of a GPU, {1 / expected:g} at once$"
    ):
        repeat(experiment(), home=furnish(tmp_path / "home"), concurrency=concurrency)


def test_repetitions_at_once_on_two_data_sets_are_refused(tmp_path, furnish, monkeypatch):
    """The file was replaced while they ran: each was done again in the driver, on the new data, without a line."""
    file = tmp_path / "mine.npz"

    def write(value):
        x, y = np.full((60, 2), value, np.float32), np.arange(60) % 2
        np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)

    def run(self, source, folder, name):
        write(2.0)
        for job in iter(source.next, None):
            self.on_job(JobEvent("ended", job))

    write(1.0)
    chosen = experiment().override({"data.name": str(file), "data.train_size": None, "partition.kind": "iid"})
    for one in (module, resources):
        monkeypatch.setattr(one, "nodes", lambda: [{"CPU": 2.0}])
    monkeypatch.setattr(module, "cluster", lambda address: nullcontext(tmp_path))
    monkeypatch.setattr(module.Runner, "run", run)
    with pytest.raises(PflOpsError, match=r"^seed 0: the data, the partition or the weights were replaced since the"):
        repeat(chosen, home=furnish(tmp_path / "home"), execution=HOW)


def test_a_repetition_that_diverges_leaves_the_others(one_ray, tmp_path, furnish):
    home = furnish(tmp_path / "home")
    found = repeat(
        experiment(lr=1e6).override({"model.name": "cnn_tiny", "training.local_steps": 20}), home=home, execution=HOW
    )
    assert found.results == [] and sorted(found.diverged) == [0, 1, 2]
    assert all(how.startswith("diverged at round ") for how in found.diverged.values())
    with Store.open(home) as store:
        assert {run.status for run in store.runs()} == {"FAILED"}


def test_a_repetition_whose_process_dies_twice_is_an_error_and_the_others_are_kept(
    one_ray, tmp_path, furnish, monkeypatch
):
    from reproducing_work import dies_with_seed_one

    monkeypatch.setattr(runner, "simulate", dies_with_seed_one)
    home = furnish(tmp_path / "home")
    with pytest.raises(PflOpsError, match="seed 1: its process died twice"):
        repeat(experiment(), home=home, execution=HOW)
    with Store.open(home) as store:
        assert sorted(run.params["seed"] for run in store.runs()) == ["0", "2"]
