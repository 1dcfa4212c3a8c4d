"""A running Ray cluster is joined; each machine reads its own copy of the data, and a wrong copy is found out."""

import os
import shutil
import sys

import numpy as np
import pytest
from tuning_fake import records_of_a_node, toy, tune

from pfl_ops import spaces
from pfl_ops.scratch import scratch
from pfl_ops.tracking import Store
from pfl_ops.tuning import ray_instance

pytestmark = pytest.mark.slow


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
        with ray_instance.environment({"PYTHONPATH": os.pathsep.join(sys.path)}):
            nodes = Cluster(initialize_head=True, head_node_args=own(1))
            nodes.add_node(**own(2))
            nodes.add_node(**own(3))
        yield nodes
        nodes.shutdown()
    monkeypatch.undo()
    ray_instance.reload_settings()


def test_trials_run_on_all_nodes_each_with_its_own_data(cluster, tmp_path, furnish):
    parameters = spaces.parse("algorithm.x: {float: [0, 1]}\nalgorithm.pause: {float: [0.2, 0.2]}").as_yaml()
    points = [{"algorithm.x": x, "algorithm.pause": 0.2} for x in (0.3, 0.6, 0.9)]
    study = tune(
        toy(dataset="mine.npz", partition="iid", clients=3),
        space=spaces.from_dict({**parameters, "first": points}),
        trials=3,
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
