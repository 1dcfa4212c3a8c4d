"""`Algorithm.ignored`: of what compared methods share, exactly the settings that change nothing about the method."""

from contextlib import closing

import pytest
import torch

from pfl_ops import spaces
from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.algorithms.base import Algorithm
from pfl_ops.algorithms.fedpg import FedPG, SFedPG
from pfl_ops.algorithms.fedrep import FedRep
from pfl_ops.algorithms.per_fedavg import PerFedAvg
from pfl_ops.algorithms.scaff_pd import ScaffPD
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution, Training
from pfl_ops.testing import MethodSimulation, quadratic_task, ragged_task

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


def same_after(method: Algorithm, one: Training, other: Training) -> bool:
    """True if all results of three rounds are equal under both trainings."""
    federation, cohorts = ragged_task(), [[0, 1, 2], [1, 3, 4], None]
    both = [MethodSimulation(federation, method, training).run(cohorts) for training in (one, other)]
    return all(torch.equal(a[key], b[key]) for a, b in zip(*both, strict=True) for key in a)


@pytest.mark.parametrize(
    ("method", "reads"),
    [
        (FedRep(schedule="steps"), True),
        (FedRep(), False),
        (FedPG(), True),
        (FedPG(gradient="full"), False),
        (SFedPG(gradient="full"), False),
    ],
    ids=lambda value: f"{value.name}-{value.model_dump()}"[:60] if isinstance(value, Algorithm) else str(value),
)
def test_an_option_may_change_what_a_method_ignores(method: Algorithm, reads: bool) -> None:
    """FedRep's `steps` counts local steps, its `epochs` does not; FedPG's full gradient needs no local training."""
    one, other = (Training(rounds=3, local_epochs=None, local_steps=j, batch_size=3) for j in (3, 5))
    assert same_after(method, one, other) != reads
    assert ("training.local_steps" in method.ignored()) != reads


@pytest.mark.parametrize("beta", [None, 0.1])
def test_per_fedavg_ignores_the_learning_rate_where_it_has_its_own(beta: float | None) -> None:
    """β takes the place of η in all rounds, so that neither η nor its decay has an effect."""
    method = PerFedAvg(beta=beta)
    one, slower, decaying = (Training(rounds=3, lr=lr, lr_decay=d) for lr, d in ((0.05, 1), (0.02, 1), (0.05, 0.5)))
    for path, other in (("training.lr", slower), ("training.lr_decay", decaying)):
        assert same_after(method, one, other) == (path in method.ignored()) == (beta is not None)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_scaff_pd_reads_the_weighting_where_lambda_is_zero_on_the_cohort(share: float) -> None:
    """Over all clients λ sums to 1. All of it on client 2, which is away: p_k counts, (¼, ¾) or (½, ½)."""
    training = Training(local_epochs=None, local_steps=2, batch_size=None, lr=0.25, precision="float64")
    found = []
    for weighting in ("samples", "uniform"):
        task = quadratic_task([0, 6, 10], [1, 3, 2], start=2)
        play = MethodSimulation(task, ScaffPD(rho=8, sigma=1 / 16, theta=0.5), training, weighting=weighting)
        play.state |= {"lam": torch.tensor([0.0, 0, 1]).double(), "losses": torch.tensor([2.0, 8, 900]).double()}
        play.state["seen"] = torch.ones(3, dtype=torch.bool)
        found.append(play.round(None if share == 1 else [0, 1])["G"].item())
    experiment = Experiment.of("scaff_pd", dataset="digits", participation=share)
    assert (found[0] == found[1]) == ("participation.weighting" in experiment.ignored()) == (share == 1)


@pytest.mark.parametrize("name", ["fedpg", "s_fedpg"])
def test_weight_decay_without_effect_is_refused(name: str) -> None:
    """The full gradient is that of F_k, without the decay that a local step of the pseudo-gradient has."""
    plain, decay = (Training(rounds=3, weight_decay=w) for w in (0.0, 0.1))
    method = ALGORITHMS.get(name)(gradient="full")
    assert same_after(method, plain, decay)
    settings = {"training.weight_decay": 0.1, "algorithm.gradient": "full"}
    with pytest.raises(PflOpsError, match=r"weight_decay=0 .*has no decay"):
        Experiment.of(name, dataset="digits", **settings)
    assert Experiment.of(name, dataset="digits", **{**settings, "algorithm.gradient": "pseudo"})


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS.builtin)
def test_a_method_ignores_exactly_what_it_says(algorithm):
    """Clients of different sizes, so that weighting has an effect where there is one."""
    settings = {"data.train_size": 60, "partition.alpha": 0.5, "training.batch_size": 5, "evaluation.global_every": 1}
    own = Experiment.of(
        algorithm, dataset="digits", model="mlp", partition="dirichlet", clients=3, rounds=2, **settings
    )
    expected, scores = outcome(own)
    method, ignored = own.algorithm, own.ignored()
    for path, value in OTHER.items():
        if method.required().get(path, ...) is not ...:
            continue
        if value == own.get(path):
            value = "sgd"  # FLIU recommends Adam
        if path == "training.local_epochs" and path not in ignored and own.training.local_steps is not None:
            continue  # it counts steps
        state, others = outcome(own.override({path: value}))
        same = scores == others and all(torch.equal(a, b) for a, b in zip(expected, state, strict=True))
        assert same == (path in ignored), path
