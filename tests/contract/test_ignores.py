"""`Algorithm.ignores`: of what compared methods share, exactly the settings that change nothing about the method."""

from contextlib import closing

import pytest
import torch

from pfl_ops import spaces
from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.settings import Execution

OTHER = {
    "training.optimiser": "adam",
    "training.lr": 0.02,
    "training.lr_decay": 0.9,
    "training.local_epochs": 2,
    "training.local_steps": 3,
    "participation.weighting": "uniform",
}
ONE = Execution(device="cpu", threads=1, workers=1, way="loop")


def outcome(experiment):
    """Every score after two rounds, and the state."""
    with closing(experiment.build(execution=ONE)) as simulation:
        for _ in simulation.run():
            pass
        rows = torch.arange(experiment.partition.clients)
        state = [
            value if isinstance(value, torch.Tensor) else value[rows] for _, value in sorted(simulation.state.items())
        ]
        scores = {key: value for key, value in simulation.records[-1].metrics.items() if key.startswith("test/")}
        return [value.clone() for value in state], scores


def test_other_values_are_known_for_all_that_methods_share():
    assert set(OTHER) == set(spaces.read_common(None).keys)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS.builtin)
def test_a_method_ignores_exactly_what_it_says(algorithm):
    """Clients of different sizes, so that weighting has an effect where there is one."""
    settings = {"data.train_size": 60, "partition.alpha": 0.5, "training.batch_size": 5, "evaluation.global_every": 1}
    own = Experiment.of(
        algorithm, dataset="digits", model="mlp", partition="dirichlet", clients=3, rounds=2, **settings
    )
    expected, scores = outcome(own)
    method = own.algorithm
    for path, value in OTHER.items():
        if path in method.requires and method.requires[path] is not ...:
            continue
        if value == own.get(path):
            value = "sgd"  # FLIU recommends Adam
        if path == "training.local_epochs" and path not in method.ignores and own.training.local_steps is not None:
            continue  # it counts steps
        state, others = outcome(own.override({path: value}))
        same = scores == others and all(torch.equal(a, b) for a, b in zip(expected, state, strict=True))
        assert same == (path in method.ignores), path
