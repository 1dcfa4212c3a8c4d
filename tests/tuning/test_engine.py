"""The real engine under the tuner, on digits."""

import pytest

from pfl_ops.data import datasets
from pfl_ops.experiment import Experiment
from pfl_ops.tracking import Store
from pfl_ops.tuning import tune

pytestmark = pytest.mark.slow


def test_trials_never_touch_test_data_and_the_choice_does(cache, one_ray, home, monkeypatch):
    """Poison: the test data are not there while the trials run."""
    monkeypatch.setenv("PFL_OPS_CACHE", str(cache))
    experiment = Experiment.of(
        "fliu", rounds=2, clients=3, local_steps=2, **{"evaluation.global_every": 1, "data.train_size": 300}
    )
    dataset = datasets.load("digits")
    kept = {file: file.read_bytes() for file in dataset.files.folder.glob("*_test.npy")}
    assert len(kept) == 2
    for file in kept:
        file.unlink()
    settings = {"trials": 3, "home": home, "hold": ["algorithm.gamma.kind"], "gpus_per_trial": 0}
    study = tune(experiment, final_repetitions=0, **settings)
    assert set(study.table["state"]) <= {"complete", "pruned"}
    assert study.openings == 0

    for file, content in kept.items():
        file.write_bytes(content)
    tested = tune(experiment, **settings)
    assert tested.openings == 1
    (result,) = tested.finals
    assert result.experiment.training.lr == tested.best["training.lr"]
    assert 0 <= result.final["final/test/L1/acc"] <= 2
    with Store.open(home) as store:
        runs = {run.name: run for run in store.runs(study.name)}
        assert {name.split()[0] for name in runs} == {"study", "000", "001", "002", "final-seed0"}
        (first,) = [run for name, run in runs.items() if name.startswith("000 ")]
        assert runs["study"].tags["pfl_ops.way"] in ("loop", "vmap")  # settled by the driver, for all trials
        assert not any(key.startswith("test/") for key in first.metrics)
        # only the objective's stage is scored in trials, all of them in the final run
        assert not any(key.startswith("val/L2/") for key in first.metrics)
        assert "test/L2/local/mean" in runs["final-seed0"].metrics
        assert runs["final-seed0"].parent == runs["study"].run_id
