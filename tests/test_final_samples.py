"""The number of samples of the last round's global view: worked out by hand, and a part of the identity."""

from types import SimpleNamespace

import pytest

from pfl_ops.config.experiment import Experiment
from pfl_ops.config.final_samples import final_samples
from pfl_ops.data.datasets import load


def images(pooled: bool = False) -> SimpleNamespace:
    """60,000 images for training and 10,000 for testing, or 70,000 of which a quarter is for testing."""
    return SimpleNamespace(sizes=(70_000, 0) if pooled else (60_000, 10_000), pooled=pooled)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rounds": 20, "clients": 100}, 1800),  # 3/10 * 20 * 60,000 / (2 * 100)
        ({"rounds": 20, "clients": 100, "local_epochs": 5}, 1800),  # whatever the local work
        ({"rounds": 10, "clients": 100, "participation.share": 0.1}, 1000),  # 90, and at least 1000
        ({"rounds": 100, "clients": 20}, None),  # 45,000, and there are 10,000
        ({"rounds": 20, "clients": 1000}, 1000),  # 200 are scored: 900
        ({"rounds": 20, "clients": 1000, "evaluation.clients": 100}, 1800),
        ({"rounds": 50, "partition": "natural"}, 2250),  # 200, however many clients the file has
        ({"rounds": 20, "clients": 100, "evaluation.final": "all"}, None),
        ({"rounds": 20, "clients": 100, "evaluation.final": 50}, 50),
        ({"rounds": 20, "clients": 100, "evaluation.final": 10_000}, None),
        ({"rounds": 20, "clients": 100, "evaluation.synthetic": 50}, None),  # needs samples of every client
        ({"rounds": 20, "clients": 100, "evaluation.split": "validation"}, 1440),  # of 48,000 and 12,000
    ],
)
def test_a_tenth_of_training(settings: dict[str, object], expected: int | None) -> None:
    assert final_samples(Experiment.of("fedavg", dataset="mnist", **settings), images()) == expected  # type: ignore[arg-type]


def test_a_pooled_data_set_is_cut_by_client() -> None:
    """3/10 * 20 * 52,500 / 200 of 17,500."""
    experiment = Experiment.of("fedavg", dataset="mnist", rounds=20, clients=100, **{"data.pooled": True})
    assert final_samples(experiment, images(pooled=True)) == 1575  # type: ignore[arg-type]


def test_the_hash_knows_the_number_and_not_the_word() -> None:
    """Of 359 samples "auto" means all; runs of earlier versions, which had no such setting, keep their hash."""
    experiment = Experiment.of("fedavg", dataset="digits")
    hashes = {final: experiment.override({"evaluation.final": final}).hash for final in ("auto", "all", 359, 400, 30)}
    assert len(set(hashes.values())) == 2 and hashes[30] != hashes["auto"]
    assert "final" not in experiment.identity()["evaluation"]
    assert experiment.override({"evaluation.final": 30}).identity()["evaluation"]["final"] == 30


def test_stages_of_the_curves_count_where_some_are_left_out() -> None:
    experiment = Experiment.of("fedavg", dataset="digits")
    every = ("all", ["G", "L2", "L1"], ["L1", "L2", "G"])
    assert {experiment.override({"evaluation.stages": s}).hash for s in every} == {experiment.hash}
    few = {experiment.override({"evaluation.stages": s}).hash for s in (["L1", "G"], ["G", "L1"])}
    assert len(few) == 1 and few != {experiment.hash}


def test_a_run_has_the_number_and_its_error() -> None:
    experiment = Experiment.of("fliu", dataset="digits", model="linear", rounds=1, **{"evaluation.final": 30})
    simulation = experiment.build()
    for _ in simulation.run():
        pass
    assert simulation.final["final/test/L1/global/samples"] == 30
    assert 0 < simulation.final["final/test/L1/global/se"] < 0.1
    whole = experiment.override({"evaluation.final": "all"}).build()
    for _ in whole.run():
        pass
    assert not [key for key in whole.final if key.startswith("final/") and key.endswith(("/samples", "/se"))]
    assert whole.final["final/test/L1/local/mean"] == simulation.final["final/test/L1/local/mean"]
    assert load(experiment.data).sizes == (1438, 359)
