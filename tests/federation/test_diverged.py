"""Divergence ends a run at the round in which it shows, and names the client whose model it is."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop import diverged
from pfl_ops.federation.loop.diverged import Diverged
from pfl_ops.federation.method.contract import Models, Rows
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.process import samples_seen

FINE = torch.ones(2, 3)


def bad(row: int, value: float = math.nan) -> Tensor:
    rows = torch.ones(2, 3)
    rows[row, 1] = value
    return rows


WHO = torch.tensor([4, 7])


@pytest.mark.parametrize(
    ("loss", "update", "stages", "message"),
    [
        (1.0, {"theta": Rows(WHO, FINE), "central": FINE[0]}, {}, None),
        (None, {"central": FINE[0]}, {}, None),
        (math.nan, {"central": FINE[0]}, {}, "diverged at round 3, lr 0.4"),
        (math.inf, {"central": FINE[0]}, {"L2": Models(bad(1), WHO)}, "diverged at round 3, client 7, lr 0.4"),
        (1.0, {"theta": Rows(WHO, bad(1))}, {}, "diverged at round 3, client 7, lr 0.4"),
        (1.0, {"theta": Rows(WHO, bad(0, -math.inf))}, {}, "diverged at round 3, client 4, lr 0.4"),
        (1.0, {"weight": Rows(WHO, torch.tensor([1.0, math.inf]))}, {}, "diverged at round 3, client 7, lr 0.4"),
        (1.0, {"central": bad(0)[0]}, {"G": Models(bad(0)[0])}, "diverged at round 3, lr 0.4"),
        (1.0, {"central": bad(0)[0]}, {"L2": Models(bad(0), WHO)}, "diverged at round 3, client 4, lr 0.4"),
        (1.0, {"central": bad(0)[0]}, {"L2": lambda who: pytest.fail("called")}, "diverged at round 3, lr 0.4"),
        (1.0, {"scale": torch.tensor(math.nan)}, {}, "diverged at round 3, lr 0.4"),
        (1.0, {"count": torch.tensor([1, 2]), "seen": torch.tensor([True])}, {}, None),
        (1.0, {"none": torch.ones(0, 3)}, {}, None),
    ],
)
def test_where_it_is_seen(loss: float | None, update: Any, stages: Any, message: str | None) -> None:
    found = diverged.check(3, 0.4, loss, update, stages)
    assert (str(found) if found else None) == message


def test_infinities_that_cancel_are_seen() -> None:
    rows = torch.tensor([[1.0, 1.0], [math.inf, -math.inf]])
    found = diverged.check(1, 0.1, 1.0, {"theta": Rows(WHO, rows)}, {})
    assert found is not None and found.client == 7


@pytest.fixture
def hot() -> Experiment:
    settings = {"data.train_size": 200, "partition.clients": 4, "training.rounds": 4, "training.lr": 1e3}
    return Experiment.of("fedavg", dataset="digits").override(settings)


def run(experiment: Experiment, folder: Path, how: str = "stop") -> Any:
    execution = Execution(device="cpu", way="loop", workers=1, threads=1, diverged=how)
    return experiment.build(execution=execution, folder=folder)


def test_a_run_ends_there_and_keeps_the_rounds_before(hot: Experiment, tmp_path: Path) -> None:
    simulation = run(hot, tmp_path)
    with pytest.raises(Diverged, match=r"^diverged at round 2, client \d, lr 1000$") as caught:
        list(simulation.run())
    assert caught.value.exit_code == 3
    assert [record.round for record in simulation.records] == [0, 1]
    cost, before = caught.value.cost, simulation.records[1].metrics
    assert samples_seen(cost) == samples_seen(before) > 0  # a whole pass over the clients' data in each round
    assert cost["cost/up_bytes"] == before["cost/up_bytes"] > 0
    again = run(hot, tmp_path)
    assert again.resumed_from == 1
    with pytest.raises(Diverged, match=str(caught.value)):
        list(again.run())


@pytest.mark.parametrize("name", ["fedpg", "s_fedpg", "fedmgda_plus", "drdm", "drfa"])
@pytest.mark.parametrize("how", ["stop", "continue"])
def test_a_solver_that_gets_values_that_are_not_finite_is_divergence(name: str, how: str, tmp_path: Path) -> None:
    """The search directions and the weights λ of these methods need finite products and losses. An error of its own
    would fail a whole study where a repetition of the confirmation diverges."""
    settings = {"data.train_size": 200, "partition.clients": 4, "training.rounds": 4, "training.lr": 1e4}
    experiment = Experiment.of(name, dataset="digits").override({**settings, "training.local_steps": 20})
    simulation = run(experiment, tmp_path, how)
    with pytest.raises(Diverged, match=r"^diverged at round \d, lr 1e\+04$") as caught:
        list(simulation.run())
    assert "not finite" in str(caught.value.__cause__)
    assert simulation.records and len(simulation.records) == caught.value.round


@pytest.mark.parametrize("second", [1.0, math.inf])
def test_another_error_of_a_method_is_no_divergence(
    second: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a round whose losses are finite, those of a second cohort (DRFA's, for its weights λ) among them."""
    simulation = run(Experiment.of("fedavg", dataset="digits").override({"data.train_size": 200}), tmp_path)
    inner = FedAvg.round

    def broken(self: Any, s: Any, r: Any) -> Any:
        inner(self, s, r)
        simulation.trainer.meter.add("second", torch.tensor(second), 1)
        raise PflOpsError("the projection failed")

    monkeypatch.setattr(FedAvg, "round", broken)
    message = r"^the projection failed$" if math.isfinite(second) else r"^diverged at round 1, lr 0\.05$"
    with pytest.raises(PflOpsError, match=message) as caught:
        list(simulation.run())
    assert isinstance(caught.value, Diverged) == (not math.isfinite(second))


def test_it_goes_on_where_that_is_asked_for_and_is_never_forgotten(hot: Experiment, tmp_path: Path) -> None:
    simulation = run(hot, tmp_path, "continue")
    assert [record.round for record in simulation.run()] == [0, 1, 2, 3, 4]
    said = str(simulation.diverged)
    assert said.startswith("diverged at round 2, client ")
    again = run(hot, tmp_path)
    list(again.run())
    assert again.read and str(again.diverged) == said


@pytest.mark.parametrize("how", ["stop", "continue"])
def test_fine_tuning_that_diverges_is_seen_when_its_models_are_scored(how: str, tmp_path: Path) -> None:
    """One step at 1,000 leaves Θ finite. Fine-tuned models are trained when they are scored, after the round's check;
    five epochs make them NaN, and the answer of NaN scores would be class 0 for each sample."""
    settings = {"data.train_size": 200, "partition.clients": 4, "training.rounds": 1, "training.lr": 1e3}
    settings |= {"training.local_epochs": None, "training.local_steps": 1, "algorithm.fine_epochs": 5}
    simulation = run(Experiment.of("fedavg_ft", dataset="digits", model="mlp").override(settings), tmp_path, how)
    if how == "stop":
        with pytest.raises(Diverged, match=r"^diverged at round 1, client \d, lr 1000$"):
            list(simulation.run())
        assert [record.round for record in simulation.records] == [0]
    else:
        list(simulation.run())
        assert str(simulation.diverged).startswith("diverged at round 1, client ")
