"""The papers' networks in a federation: they train, one at a time or stacked, and what comes out is the same."""

from typing import Any

import numpy as np
import pytest
import torch

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.data.clients import Clients, Pool
from pfl_ops.federation.loop.simulate import Simulation
from pfl_ops.federation.settings import Evaluation, Execution, Training, UniformParticipation
from pfl_ops.models import MODELS, build, check
from pfl_ops.models.base import example_of

N_CLASSES = 3
NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "kmnist_cnn": ((8, 8, 1), {"hidden": 16}),
    "fakelenet5": ((16, 16, 3), {}),
    "lenet5": ((16, 16, 3), {}),
    "cnn6": ((16, 16, 3), {"hidden": 16}),
    "nf_resnet18": ((8, 8, 1), {"width": 8}),
    "char_lstm": ((6,), {"characters": 20, "hidden": 16}),
}


def pool(shape: tuple[int, ...], seed: int) -> Pool:
    """Two clients of 5 and 3 samples, three classes that a patch or the last characters give away."""
    draws = np.random.default_rng(seed)
    y = np.arange(8) % N_CLASSES
    x = draws.integers(0, 20, size=(8, *shape)).astype(np.uint8)
    if len(shape) == 3:
        for k, c in enumerate(y):
            x[k, :, 2 * c : 2 * c + 3] += 40
    else:
        x[:, -4:] = 5 * y[:, None]
    return Pool(torch.from_numpy(x), torch.from_numpy(y), [torch.arange(5), torch.arange(5, 8)])


def simulate(name: str, method: str, way: str, precision: str, rounds: int) -> Simulation:
    shape, options = NETWORKS[name]
    train = pool(shape, 0)
    channels = shape[-1] if len(shape) == 3 else 1
    clients = Clients(
        train=train, held=pool(shape, 1), split="test", n_classes=N_CLASSES, shape=shape,
        mean=np.full(channels, 20 if len(shape) == 3 else 0, np.float32),
        std=np.full(channels, 20 if len(shape) == 3 else 1, np.float32),
        data_digest="d", partition_digest="p", table=train.class_counts(N_CLASSES).numpy(),
        recorded=None,  # type: ignore[arg-type]
    )  # fmt: skip
    network = build(MODELS.get(name)(**options), shape, N_CLASSES, seed=0)
    lr = {"char_lstm": 2.0, "nf_resnet18": 0.01}.get(name, 0.1)
    return Simulation(
        network,
        ALGORITHMS.get(method)(),
        clients,
        Training(rounds=rounds, local_epochs=2, batch_size=4, lr=lr, precision=precision),
        UniformParticipation(),
        Evaluation(split="test"),
        seed=0,
        execution=Execution(device="cpu", way=way, threads=1, workers=1),
        stackable=check(network, example_of(shape), name),
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_it_learns(name: str) -> None:
    rounds = 20 if name in ("char_lstm", "lenet5") else 8
    records = list(simulate(name, "fedavg", "loop", "float32", rounds).run())
    losses = [record.metrics["train/loss"] for record in records if "train/loss" in record.metrics]
    assert losses[-1] < 0.8 * losses[0]
    assert 0 <= records[-1].metrics["test/G/global/mean"] <= 1


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "char_lstm"])
def test_stacked_clients_end_where_single_ones_do(name: str) -> None:
    ends = []
    for way in ("loop", "vmap"):
        simulation = simulate(name, "fedrep", way, "float64", rounds=1)
        list(simulation.run())
        ends.append(simulation.global_model())
    assert all(torch.allclose(ends[0][key], ends[1][key], rtol=1e-8, atol=1e-10) for key in ends[0])
