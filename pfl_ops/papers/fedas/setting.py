"""Setting of FedAS: data, networks, methods, measures, sizes.

Source: Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024.

The setting: 20 clients, Dir(β) with β of 0.1, 0.3, 0.5, a share P of 0.2, 0.4, 0.6 or all of them in a round, 40 rounds
of 5 epochs, batches of 16, SGD with η 0.005, a 6-layer CNN, one run with seed 0 (here five runs). Tables 2 and 3
compare ten methods on CIFAR-100 and CIFAR-10, Table 4 takes FedAS apart; the figures have lost their images and keep
the sentences about them.

The paper states no hyper-parameter of any baseline, and not which model of which clients is scored. Ours: each client's
own model after local training (L2), all clients alike, on its own test samples, in the last round: clients that were
absent there train once more (rows of Tables 2 and 3 score them as last trained instead). The paper takes the
highest accuracy of all rounds; after local training, only a round's cohort is there to be scored, so the highest of our
rounds would be that of a lucky cohort. FedAvg-P and FedProx-P are Θ fine-tuned as long as a client trains in a round.

The published code (to know when comparing numbers) scores the pooled test samples of all clients in the best round:
FedAS by the models as last trained, FedAvg and FedProx by the cohort after training and by Θ itself for all other
clients, which may be why FedAvg-P loses so much at small P.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from pfl_ops.papers.sources import fedas as sources
from pfl_ops.papers.suite import Axis, Level, Measure, Scale, Suite, method

LOCAL = "test/L2/local/mean"
RECEIVED = "test/L1/local/mean"
TRAINED = Measure(LOCAL, "accuracy")
HIGHEST = Measure(f"{LOCAL}#best", "highest round")
ON_RECEIPT = Measure(RECEIVED, "on receipt")

BASE: Mapping[str, Any] = {
    "data.name": "cifar10",
    "data.train_size": None,
    "data.pooled": True,
    "data.test_share": 0.25,
    "partition.kind": "dirichlet",
    "partition.clients": 20,
    "partition.alpha": 0.1,
    "partition.cap": True,
    "partition.min_size": 40,
    "model.name": "cnn6",
    "training.rounds": 40,
    "training.local_epochs": 5,
    "training.batch_size": 16,
    "training.optimiser": "sgd",
    "training.lr": 0.005,
    "training.lr_decay": 1.0,
    "training.momentum": 0.0,
    "training.weight_decay": 0.0,
    "participation.weighting": "uniform",
    "evaluation.split": "test",
    "evaluation.global_every": 40,
}
"""Settings of all suites; β 0.1 and CIFAR-10 where an exhibit does not say."""

FIGURE: Mapping[str, Any] = {**BASE, "participation.share": 0.6}
"""P of the only figure that says it (Fig. 5)."""

SMALL: Mapping[str, Any] = {
    "data.train_size": 1500,
    "partition.clients": 10,
    "training.rounds": 10,
    "training.local_epochs": 2,
    "training.lr": 0.02,
    "evaluation.global_every": 10,
    "evaluation.subset": 100,
}
FEWER = (
    "10 clients with 135 training images each, 10 rounds of 2 epochs, at four times the rate, so that they learn at all"
)
LAST: Mapping[str, Any] = {**SMALL, "evaluation.every": 10}
"""Settings at small of suites without a curve: only the last round is scored."""
WITH_CURVE = Level(at={"small": {"evaluation.every": 1}})
"""A cell that a figure shows over rounds too: it is run once for both."""
MEDIUM = Scale(
    {"model.name": "mlp"},
    note="An MLP of 200-200 in place of the CNN: 1.5 ms of one core a minibatch, where the CNN takes 15 ms; its second "
    "hidden layer has the features that FedAS aligns",
)
SMOKE = Scale({"model.name": "cnn_tiny"}, note="A much smaller network: cnn6 takes seconds on CIFAR images")

fedas_suite = partial(
    Suite, repetitions=5, departures=sources.DEPARTURES, medium=MEDIUM, small=Scale(SMALL, 3, FEWER), smoke=SMOKE
)
"""A suite of this paper. The paper has one run, or names no number: a claim of one seed could never be judged."""

# -- axes --------------------------------------------------------------------------------------------------------------


METHODS: Axis = {
    "fedavg_p": method("FedAvg-P", "fedavg_ft"),
    "fedprox_p": method("FedProx-P", "fedprox_ft", mu=0.01),
    "fedper": method("FedPer", "fedper"),
    "ditto": method("Ditto", "ditto", lam=1.0),
    "lg_fedavg": method("LG-FedAvg", "lg_fedavg"),
    "fedbabu": method("FedBABU", "fedbabu", fine_epochs=5),
    "fedproto": method("FedProto", "fedproto", lam=1.0),
    "fedala": method("FedALA", "fedala", share=80.0),
    "fedpac": method("FedPAC", "fedpac", lam=1.0, head_lr=0.1),
    "fedas": method("FedAS", "fedas"),
}
FEDAS: Axis = {"fedas": METHODS["fedas"]}
LETTER: Axis = {"letter": method("FedAS, Eq. 5 to 8", "fedas", fisher="dataset", shrink=True)}
"""The letter of Eq. 5, 6 and 8 beside our reading. No claim is judged by it."""
STAY: Axis = {
    f"{label}_stay": Level(
        {**METHODS[label].changes, "evaluation.absent": "last"},
        f"{METHODS[label].title}, absent clients as last trained",
        at={"small": {"evaluation.every": 1}},
    )
    for label in ("fedavg_p", "fedas")
}
"""The paper's reading of P < 1 for the two methods that are compared there. No claim is judged by it."""
OTHERS = f"{{{','.join(name for name in METHODS if name != 'fedas')}}}"
PRINTED = f"{{{','.join(METHODS)}}}"
SKEW: Axis = {f"b{b}": Level({"partition.alpha": b}, f"β = {b}") for b in (0.1, 0.3, 0.5)}
PARTICIPATION: Axis = {f"p{p:g}": Level({"participation.share": p}, f"P = {p:g}") for p in (0.2, 0.4, 0.6, 1.0)}
DATA: Axis = {
    "cifar10": Level({"data.name": "cifar10"}, "CIFAR-10"),
    "cifar100": Level({"data.name": "cifar100"}, "CIFAR-100"),
}
