"""One meaning, many ways to run it: whatever the execution, a round trains the same models."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.method.contract import ClientRows
from pfl_ops.federation.settings import Execution

LOOP = Execution(device="cpu", way="loop", threads=1, workers=1)
STACKS = {f"stacks of {c}": Execution(device="cpu", way="vmap", chunk=c, threads=1, workers=1) for c in (1, 2, 6)}
TWO_THREADS = {"two threads": Execution(device="cpu", way="loop", threads=2, workers=1)}
PROCESSES = {
    "two processes": Execution(device="cpu", way="loop", threads=1, workers=2),
    "two processes, stacks of 2": Execution(device="cpu", way="vmap", chunk=2, threads=1, workers=2),
}
SHORTER: dict[str, dict[str, Any]] = {
    "fedrep": {"algorithm.head_epochs": 2}, "pfedme": {"training.local_steps": 6, "algorithm.inner_steps": 2},
}  # fmt: skip
OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd": {"training.optimiser": "sgd", "training.lr": 0.05},
    "momentum": {
        "training.optimiser": "sgd", "training.lr": 0.05, "training.momentum": 0.9, "training.weight_decay": 0.01,
    },
    "adam": {"training.optimiser": "adam", "training.lr": 0.002},
}  # fmt: skip


def experiment(method: str, model: str, **more: Any) -> Experiment:
    """Six clients of very different sizes, four of them a round, two rounds."""
    return Experiment.of(
        method, dataset="digits", model=model, clients=6, rounds=2, partition="dirichlet", batch_size=10,
        **{"partition.alpha": 0.3, "data.train_size": 120, "participation.share": 0.67, "training.precision": "float64",
           **SHORTER.get(method, {}), **more},
    )  # fmt: skip


def trained(e: Experiment, execution: Execution) -> dict[str, Tensor]:
    """The state after the last round, all rows."""
    simulation = e.build(execution=execution, stages=(), final=False)
    try:
        for _ in simulation.run():
            pass
    finally:
        simulation.close()
    everyone = torch.arange(simulation.task.n_clients)
    return {k: v[everyone] if isinstance(v, ClientRows) else v for k, v in simulation.state.items()}


_looped: dict[str, dict[str, Tensor]] = {}


def agree(e: Experiment, execution: Execution) -> None:
    """As the loop trains, which is run once for all executions that are held against it."""
    if e.digest() not in _looped:
        _looped[e.digest()] = trained(e, LOOP)
    expected, found = _looped[e.digest()], trained(e, execution)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("method", sorted(ALGORITHMS.builtin))
@pytest.mark.parametrize("model", ["mlp", "cnn_tiny"])
@pytest.mark.parametrize("execution", STACKS)
def test_stacks_train_what_the_loop_trains(method: str, model: str, execution: str) -> None:
    agree(experiment(method, model), STACKS[execution])


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("model", ["linear", "mlp", "cnn_tiny"])
@pytest.mark.parametrize("execution", STACKS | TWO_THREADS)
def test_with_every_optimiser(optimiser: str, model: str, execution: str) -> None:
    agree(experiment("fedavg", model, **OPTIMISERS[optimiser]), (STACKS | TWO_THREADS)[execution])


@pytest.mark.usefixtures("forked_children")
@pytest.mark.parametrize("method", ["fedavg", "apfl", "scaffold"])
@pytest.mark.parametrize("execution", PROCESSES)
def test_processes_train_what_one_trains(method: str, execution: str) -> None:
    agree(experiment(method, "mlp"), PROCESSES[execution])


@pytest.mark.needs_data("mnist")
@pytest.mark.parametrize(("model", "reference"), [("mlp", "float64"), ("cnn_tiny", "float32")])
def test_lower_precision_stays_within_the_spread_over_seeds(model: str, reference: str) -> None:
    """MNIST, three seeds: what a lower precision changes is less than what another seed does."""

    def accuracies(precision: str, execution: Execution) -> np.ndarray:
        e = Experiment.of(
            "fliu", dataset="mnist", model=model, clients=5, rounds=3, local_epochs=2, partition="dirichlet",
            optimiser="sgd", lr=0.1, batch_size=20,
            **{"data.train_size": 600, "training.precision": precision, "evaluation.subset": 100},
        )  # fmt: skip
        found = []
        for seed in range(3):
            *_, last = e.override({"seed": seed}).build(execution=execution, final=False).run()
            found.append([last.metrics["test/L1/acc"], last.metrics["test/G/global/mean"]])
        return np.array(found)

    exact = accuracies(reference, LOOP)
    spread = np.ptp(exact, axis=0)
    assert exact[:, 1].min() > 0.3 and (spread > 0.01).all(), "nothing was learnt, or every seed learnt the same"
    lower = [("bfloat16", LOOP)] + [("float32", way) for way in (LOOP, STACKS["stacks of 6"]) if reference == "float64"]
    for precision, execution in lower:
        change = abs(accuracies(precision, execution).mean(axis=0) - exact.mean(axis=0))
        assert (change < spread).all(), f"{precision}: {change}, seeds: {spread}"
