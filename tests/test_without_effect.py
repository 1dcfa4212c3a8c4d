"""`Experiment.without_effect`: settings that are said to change no result change none, and others are not named."""

from contextlib import closing

import pytest
import torch

from pfl_ops import spaces
from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.cli.options import without_effect
from pfl_ops.config.experiment import Experiment
from pfl_ops.config.without_effect import OPTIONS
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.federation.settings import Execution

LOOP = Execution(device="cpu", way="loop", threads=1, workers=1)
SMALL = {
    "dataset": "digits", "model": "mlp", "partition": "dirichlet", "clients": 4, "rounds": 3, "train_size": 60,
    "partition.alpha": 0.5, "training.batch_size": 5,
}  # fmt: skip

SWITCHED_OFF = [
    ("apfl", {"adaptive": False}, "every", "step"),
    ("drfa", {"gamma": 0.0}, "gamma_decay", 0.5),
    ("cd2_pfed", {"temporal": False}, "beta", 0.3),
    ("fedas", {"align": "off"}, "align_lr", 0.3),
    ("fedas", {"align": "off"}, "align_rule", "letter"),
    ("fedas", {"align": "parallel"}, "align_rule", "letter"),
    ("fedas", {"split": "channels", "channels.temporal": False}, "channels.beta", 0.3),
    ("fedas", {"align": "parallel"}, "align_lr", 0.3),
    ("fedas", {"align_rule": "letter"}, "align_lr", 0.3),
    ("fedas", {"align": "global"}, "align_weight", 0.3),
    ("fedas", {}, "channels.beta", 0.3),
    ("fedas", {}, "channels.share", 0.3),
    ("fedas", {}, "channels.temporal", False),
    ("fedas", {"synchronize": False}, "fisher", "batch"),
    ("fedas", {"synchronize": False}, "normalise", "softmax"),
    ("fedas", {"synchronize": False}, "shrink", True),
    ("fedavg2rep", {"warm_up": 0}, "warm_up_steps", 1),
    ("fedfomo", {"explore": 0.0, "candidates": 2}, "explore_decay", 0.3),
    ("fedfomo", {"candidates": 4}, "explore", 1.0),
    ("fedpg", {"drift": False}, "gamma", 0.5),
    ("fedpg", {"direction": "mean"}, "fair", False),
    ("fedpg", {"direction": "mean"}, "absent", False),
    ("s_fedpg", {"direction": "mean"}, "scale", "paper"),
    ("per_fedavg", {"variant": "fo"}, "delta", 0.1),
    ("per_fedavg", {"variant": "exact"}, "delta", 0.1),
]
READ = [
    ("apfl", {}, "every", "step"),
    ("cd2_pfed", {}, "beta", 0.3),
    ("drfa", {}, "gamma_decay", 0.5),
    ("fedas", {}, "align_lr", 0.3),
    ("fedas", {}, "align_rule", "letter"),
    ("fedas", {"align": "parallel"}, "align_weight", 0.3),
    ("fedas", {"split": "channels"}, "channels.beta", 0.3),
    ("fedas", {}, "fisher", "batch"),
    ("fedas", {}, "normalise", "softmax"),
    ("fedas", {}, "shrink", True),
    ("fedavg2rep", {"warm_up": 2}, "warm_up_steps", 1),
    ("fedfomo", {"candidates": 2}, "explore", 1.0),
    ("fedfomo", {"candidates": 2, "explore": 1.0}, "explore_decay", 0.5),
    ("fedpg", {}, "gamma", 1.0),
    ("fedpg", {}, "fair", False),
    ("fedpg", {}, "absent", False),
    ("fedpg", {}, "scale", "paper"),
    ("s_fedpg", {}, "fair", False),
    ("per_fedavg", {"variant": "hf"}, "delta", 0.1),
]


def outcome(experiment: Experiment) -> tuple[list[torch.Tensor], dict[str, float]]:
    """The state after the last round, and its scores."""
    with closing(experiment.build(execution=LOOP)) as simulation:
        for _ in simulation.run():
            pass
        clients = torch.arange(experiment.partition.clients)
        state = [
            value.clone() if isinstance(value, torch.Tensor) else value[clients]
            for _, value in sorted(simulation.state.items())
        ]
        return state, {key: value for key, value in simulation.records[-1].metrics.items() if key.startswith("test/")}


def are_equal(one: Experiment, other: Experiment) -> bool:
    """True if both have the same scores and the same state."""
    (state, scores), (others, theirs) = outcome(one), outcome(other)
    return scores == theirs and all(torch.equal(a, b) for a, b in zip(state, others, strict=True))


def of(method: str, options: dict[str, object]) -> Experiment:
    own = {f"algorithm.{name}": value for name, value in options.items()}
    share = 1.0 if method == "fedfomo" else 0.75
    steps = {"local_epochs": None, "local_steps": 3} if method == "fedavg2rep" else {}
    return Experiment.of(method, **SMALL, participation=share, **steps, **own)


@pytest.mark.parametrize(("method", "options", "name", "other"), SWITCHED_OFF)
def test_an_option_that_another_one_switches_off_changes_nothing(method, options, name, other):
    """FedAS's page counted the options of CD2-pFed's channels as assumptions, in all cells without channels."""
    experiment, path = of(method, options), f"algorithm.{name}"
    assert path in experiment.without_effect()
    assert are_equal(experiment, experiment.override({path: other}))


@pytest.mark.parametrize(("method", "options", "name", "other"), READ)
def test_an_option_that_is_read_changes_results(method, options, name, other):
    experiment, path = of(method, options), f"algorithm.{name}"
    assert path not in experiment.without_effect()
    assert not are_equal(experiment, experiment.override({path: other}))


@pytest.mark.parametrize("partition", PARTITIONS.builtin)
def test_rules_take_every_method_with_every_partition(partition):
    """The clients of `natural` and of a file are not known before the data are: FedFomo's rule counts them."""
    given = {"path": "mine.json"} if partition == "file" else {}
    for method in ALGORITHMS.builtin:
        experiment = Experiment.of(method, partition=partition, **{f"partition.{k}": v for k, v in given.items()})
        assert "algorithm.explore" not in experiment.without_effect()


def test_every_rule_has_its_cases():
    """A pattern of `OPTIONS` without a case could name a setting that is read."""
    off = {(method, name.partition(".")[0]) for method, _, name, _ in SWITCHED_OFF}
    rules = {(method, path.split(".")[1].rstrip("*")) for method, rules in OPTIONS.items() for path in rules}
    shared = {("s_fedpg", name) for name in ("gamma", "fair", "absent")} | {("fedpg", "scale")}  # one table for both
    assert rules - shared == off


@pytest.mark.parametrize(
    ("path", "other"),
    [("data.test_share", 0.4), ("evaluation.validation_share", 0.4), ("evaluation.equal_tests", True)],
)
def test_a_setting_of_data_or_scores_changes_nothing(path, other):
    experiment = of("fedavg", {})
    assert path in experiment.without_effect()
    assert are_equal(experiment, experiment.override({path: other}))


@pytest.mark.parametrize("name", ["drdm", "drfa"])
def test_methods_with_cohorts_of_their_own_have_absent_clients_at_full_participation(name):
    """Six clients drawn with replacement for six places. The others train once more, or have the score of their last
    round; scores at L2 differ."""
    full = Experiment.of(name, dataset="digits").override(
        {"model.name": "linear", "partition.clients": 6, "participation.share": 1.0, "training.rounds": 2,
         "evaluation.every": 1}
    )  # fmt: skip
    assert "evaluation.absent" not in full.without_effect()
    assert full.without_effect()["participation.kind"] == "the method draws its own cohorts"
    scores = {}
    for absent in ("train", "last"):
        simulation = full.override({"evaluation.absent": absent}).build(execution=LOOP)
        for _ in simulation.run():
            pass
        scores[absent] = simulation.final["final/test/L2/local/mean"]
    assert scores["train"] != scores["last"]
    fedavg = Experiment.of("fedavg", dataset="digits").override({"participation.share": 1.0})
    assert fedavg.without_effect()["evaluation.absent"] == "all clients take part"


# -- searches ----------------------------------------------------------------------------------------------------------


def test_a_key_that_half_of_the_points_read_is_not_idle():
    space = spaces.parse(
        "algorithm.drift: {choice: [true, false]}\nalgorithm.gamma: {float: [0.0, 1.0]}\n"
        "algorithm.fair: {choice: [true, false]}\n"
    )
    found = [Experiment.of("fedpg", **{"algorithm.direction": way}) for way in ("common", "mean")]
    paths = ["algorithm.gamma", "algorithm.fair"]
    assert spaces.idle(space, found[:1], paths) == {}
    assert spaces.idle(space, found[1:], paths) == {"algorithm.fair": "read with direction common only"}
    assert spaces.idle(space, found, paths) == {}  # one environment reads it


def test_a_condition_keeps_a_key_out_of_the_points_that_do_not_read_it():
    """γ is drawn where drift is on, and read there; at other points there is nothing to say about it."""
    text = (
        "algorithm.drift: {choice: [true, false]}\nalgorithm.gamma: {float: [0.0, 1.0], when: {algorithm.drift: true}}"
    )
    assert spaces.idle(spaces.parse(text), [Experiment.of("fedpg")], ["algorithm.gamma"]) == {}


@pytest.mark.parametrize("method", ["fedas", "fedpg", "s_fedpg", "apfl", "fedfomo", "drfa", "per_fedavg", "fedavg2rep"])
def test_no_method_searches_a_setting_in_vain(method):
    space, experiment = spaces.read(None, method), Experiment.of(method, dataset="digits")
    assert spaces.idle(space, [experiment], space.keys) == {}


def test_a_line_names_methods_where_there_are_several():
    why = {"participation.weighting": "the method does not read it", "algorithm.gamma": "read with drift only"}
    assert without_effect({"fedpg": why}) == (
        "without effect: participation.weighting (the method does not read it); algorithm.gamma (read with drift only)"
    )
    one = {"participation.weighting": "the method does not read it"}
    assert without_effect({"fedavg": {}, "apfl": one, "fedas": one}).endswith(
        "participation.weighting on apfl, fedas (the method does not read it)"
    )
    assert without_effect({"fedavg": {}}) == ""
