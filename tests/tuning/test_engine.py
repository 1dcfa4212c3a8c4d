"""The real engine under the tuner, on digits."""

import pytest
from nodes_work import begun, slowly
from reproducing_work import dies_with_seed_one
from tuning_fake import tune as tune_with

from pfl_ops import spaces
from pfl_ops.config.experiment import Experiment
from pfl_ops.data import datasets
from pfl_ops.errors import PflOpsError
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
        table = study.confirmation.table if study.confirmation else []
        confirmed = {f"confirm-{t:03d}-seed{s}" for t, s, _ in table.itertuples(index=False)} if len(table) else set()
        assert {name.split()[0] for name in runs} == {"study", "000", "001", "002", "final-seed0", *confirmed}
        (first,) = [run for name, run in runs.items() if name.startswith("000 ")]
        assert runs["study"].tags["pfl_ops.way"] in ("loop", "vmap")  # settled by the driver, for all trials
        assert not any(key.startswith("test/") for key in first.metrics)
        # only the objective's stage is scored in trials, all of them in the final run
        assert not any(key.startswith("val/L2/") for key in first.metrics)
        assert "test/L2/local/mean" in runs["final-seed0"].metrics
        assert runs["final-seed0"].parent == runs["study"].run_id


def test_confirmations_never_touch_test_data(cache, one_ray, home, monkeypatch):
    """Poison, as above, while trials and the runs with a new seed are under way; the test data stay closed."""
    monkeypatch.setenv("PFL_OPS_CACHE", str(cache))
    experiment = Experiment.of("fedavg", model="linear", rounds=2, clients=3, local_steps=2, seed=7)
    kept = {file: file.read_bytes() for file in datasets.load("digits").files.folder.glob("*_test.npy")}
    assert len(kept) == 2
    for file in kept:
        file.unlink()
    try:
        settings = {"trials": 2, "scheduler": "none", "gpus_per_trial": 0, "confirm": 1, "final_repetitions": 0}
        study = tune(experiment, home=home, name="poisoned", **settings)
    finally:
        for file, content in kept.items():
            file.write_bytes(content)
    assert study.table["state"].tolist() == ["complete"] * 2 and study.openings == 0
    assert study.confirmation.table["seed"].tolist() == [1007] * 2
    with Store.open(home) as store:
        runs = [run for run in store.runs("poisoned") if run.tags["pfl_ops.kind"] == "confirmation"]
        values = {run.tags["pfl_ops.confirms"]: run.metrics["val/L1/acc"] for run in runs}
        assert not any(key.startswith("test/") for run in runs for key in run.metrics)
    expected = {f"trial-{t:03d}": value for t, _, value in study.confirmation.table.itertuples(index=False)}
    assert values == pytest.approx(expected)


def quick(rounds=1, **settings):
    """A study of one trial of a small run."""
    experiment = Experiment.of("fedavg", dataset="digits", model="linear", clients=3, rounds=rounds, local_steps=2)
    space = spaces.parse("training.lr: {float: [0.05, 0.1]}")
    return tune_with(experiment, space=space, trials=1, gpus_per_trial=0, **settings)


def test_more_tests_of_a_finished_study_run_at_once_and_the_first_is_read(cache, one_ray, home, monkeypatch):
    monkeypatch.setenv("PFL_OPS_CACHE", str(cache))
    events = []
    settings = {"name": "more", "home": home, "records": slowly}
    (first,) = quick(**settings, final_repetitions=1).finals
    study = quick(**settings, final_repetitions=3, on_event=events.append)
    assert [result.experiment.seed for result in study.finals] == [0, 1, 2]
    assert study.finals[0].run_id == first.run_id and study.finals[0].final == first.final
    counts = begun(home)
    assert [counts[result.experiment.digest()] for result in study.finals] == [1, 1, 1]
    assert [(event.trial, event.text) for event in events if event.kind == "final" and event.text] == [
        (0, "was over before: read")
    ]
    assert sorted(event.trial for event in events if event.kind == "test") == [1, 2]


def test_a_test_run_that_is_lost_twice_ends_the_study_and_the_others_are_kept(cache, one_ray, home, monkeypatch):
    monkeypatch.setenv("PFL_OPS_CACHE", str(cache))
    with pytest.raises(PflOpsError, match="test run 2: its process died twice"):
        quick(rounds=2, name="lost", home=home, records=dies_with_seed_one, final_repetitions=2)
    with Store.open(home) as store:
        runs = {run.name: run.status for run in store.runs("lost")}
    assert runs["study"] == "FAILED" and runs["final-seed0"] == "FINISHED" and "final-seed1" not in runs
