"""A running Ray cluster is joined; each machine reads its own copy of the data; a machine that is lost is replaced."""

import os
import shutil
import sys
from pathlib import Path

import fork_server
import numpy as np
import pytest
from ray._private import ray_constants

sys.path.insert(0, str(Path(__file__).parent.parent / "papers"))

from nodes_work import begun, slowly
from toy_suite import TOY
from tuning_fake import records_of_a_node, toy, tune

from pfl_ops import runs, spaces, tuning
from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs import ray_instance, resources, runner
from pfl_ops.system.scratch import scratch
from pfl_ops.tracking import Store

pytestmark = pytest.mark.slow

FIXED = Execution(device="cpu", way="loop", workers=1, threads=1)


def write_data(folder, seed):
    folder.mkdir()
    generator = np.random.default_rng(seed)
    x = {
        f"x_{part}": generator.integers(0, 255, (n, 8, 8, 1), dtype=np.uint8)
        for part, n in (("train", 60), ("test", 20))
    }
    y = {f"y_{part}": np.arange(n) % 10 for part, n in (("train", 60), ("test", 20))}
    np.savez(folder / "mine.npz", **x, **y)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Three nodes of one CPU, each with a data folder and a cache of its own; data3 is not the driver's data0."""
    import ray
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        pytest.skip("this process has joined another Ray; run this file first, or alone")
    write_data(tmp_path / "data0", seed=0)
    for i in (1, 2):  # copied: a file written a second later differs, by the time in it
        shutil.copytree(tmp_path / "data0", tmp_path / f"data{i}")
    write_data(tmp_path / "data3", seed=1)
    monkeypatch.setenv("PFL_OPS_DATA", str(tmp_path / "data0"))
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache0"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "c1" * 32)
    ray_instance.reload_settings()

    def own(i):
        names = {"PFL_OPS_DATA": str(tmp_path / f"data{i}"), "PFL_OPS_CACHE": str(tmp_path / f"cache{i}")}
        return {"num_cpus": 1, "env_vars": names}

    with scratch(ray_instance.short_folder()) as folder:
        (folder / "ray").mkdir()
        monkeypatch.setenv("RAY_TMPDIR", str(folder))
        monkeypatch.setattr(ray_constants, "SETUP_WORKER_FILENAME", fork_server.ray_worker())
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        with ray_instance.environment(path), ray_instance._with_few_processes():
            nodes = Cluster(initialize_head=True, head_node_args=own(1))
            nodes.add_node(**own(2))
            nodes.add_node(**own(3))
        yield nodes
        nodes.shutdown()
    monkeypatch.undo()
    ray_instance.reload_settings()


@pytest.fixture
def one_driver(cluster):
    """All calls of a test join the cluster as one driver: only the workers of the first one are forks."""
    with resources.joined(cluster.address):
        yield


def test_trials_run_on_all_nodes_each_with_its_own_data(cluster, tmp_path, furnish):
    parameters = spaces.parse("algorithm.x: {float: [0, 1]}\nalgorithm.pause: {float: [0.2, 0.2]}").as_yaml()
    points = [{"algorithm.x": x, "algorithm.pause": 0.2} for x in (0.3, 0.6, 0.9)]
    study = tune(
        toy(dataset="mine.npz", partition="iid", clients=3),
        space=spaces.from_dict({**parameters, "first": points}),
        trials=3,
        concurrency=None,
        scheduler="none",
        address=cluster.address,
        home=furnish(tmp_path / "home"),
        records=records_of_a_node,
        final_repetitions=0,
    )
    assert sorted(study.table["state"]) == ["complete", "complete", "failed"]
    with Store.open(tmp_path / "home") as store:
        runs = [run for run in store.runs(study.name) if run.parent]
        assert {run.metrics["node"] for run in runs if run.status == "FINISHED"} == {1.0, 2.0}
    (error,) = [e for e in study.table["error"] if e]
    assert error.startswith("mine.npz on ") and f"({tmp_path}/data3) is not the driver's: digest" in error


@pytest.mark.usefixtures("one_driver")
def test_a_lost_machine_costs_no_finished_run_and_changes_no_value(cluster, tmp_path, furnish, monkeypatch):
    """Three test runs, one on each machine, two rounds in; one machine is lost. Then two cells, on those that are left.

    Every run that was not on that machine is begun once, and all values are those of a single machine.
    """

    home, killed = furnish(tmp_path / "home"), []

    def lose_one(event):
        if event.kind == "rounds" and event.round >= 2 and not killed:
            killed.append(next(node for node in cluster.worker_nodes))
            cluster.remove_node(killed[0], allow_graceful=False)

    experiment = Experiment.of("fedavg", dataset="digits", clients=3, rounds=5, local_steps=2, model="linear")
    study = tune(
        experiment,
        space=spaces.parse("training.lr: {float: [0.05, 0.1]}"),
        trials=2,
        scheduler="none",
        final_repetitions=3,
        address=cluster.address,
        home=home,
        execution=FIXED,
        records=slowly,
        on_event=lose_one,
    )
    assert killed and study.table["state"].tolist() == ["complete", "complete"]
    counts = begun(home)
    tests = [counts.pop(result.experiment.digest()) for result in study.finals]
    assert sorted(tests) in ([1, 1, 1], [1, 1, 2])  # which of the machines was lost, nobody knows beforehand
    assert set(counts.values()) == {1} and len(counts) == 2  # the trials

    cells = (TOY.cell("iid/fedavg"), TOY.cell("path/fedavg"))
    plan = tuning.plan([(TOY, cells)], "smoke")
    monkeypatch.setattr(runner, "simulate", slowly)
    (suite,) = tuning.reproduce(plan, home=home, address=cluster.address, execution=FIXED)
    assert {name: len(found) for name, found in suite.outcomes.items()} == {"iid/fedavg": 1, "path/fedavg": 1}

    alone = Path(furnish(tmp_path / "alone"))
    for result in study.finals:
        single = runs.run(result.experiment, home=alone, execution=FIXED, progress=False)
        assert result.final == single.final and values(result.rounds).equals(values(single.rounds))
    for cell in plan.wanted:
        single = runs.run(cell.experiment, home=alone, execution=FIXED, progress=False)
        (one,) = suite.outcomes[cell.cell.name]
        assert {key: one.metrics[key] for key in single.final} == single.final


def values(rounds):
    """A run's table without what it took."""
    return rounds.drop(columns=[key for key in rounds if key.startswith("cost/")])
