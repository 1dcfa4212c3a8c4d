"""The FLIU paper's setting, and our assumptions where it states none.

It states: 100 clients (Table III: 10 too), all of them in each of 100 rounds, 5 local epochs, batches of 50, 3
repetitions. MNIST with McMahan's network, CIFAR-10 with one more convolution. FedAvg and FLIU learn at 0.01 (MNIST) and
0.001 (CIFAR-10) with a decay of 0.99, FLIU with Adam; APFL at 0.1; FedFomo at 0.01 and 0.1 without decay and with 5
downloaded models. CLT is our `local`. Nothing was tuned. What it does not state is under `sources.fliu`.

Its APFL and FedFomo come from PFLlib, which computes something else. The methods' own papers' equations run here, and
PFLlib's readings run beside them as cells of their own.

Acc(G) of the last round, which the tables and nearly all claims are about, is of all test samples. Its curve has every
round, of 1,000 samples (drawn by label): all of them in every round take longer than the training of an MLP.

Adam at 0.01 is near the edge with McMahan's network: its first steps move each weight by 0.01, where PyTorch draws
those of the fully connected layer within 0.018. The input scaling, which the paper does not state, decides what
follows. In plain PyTorch, 2,000 images, B 50, 16 initialisations: after 40 steps all inputs had the same output (loss
ln 10) in 13 with inputs scaled by mean and deviation, in 1 with (x - 0.5) / 0.5. The paper's numbers show no such
networks: all sizes run `data.scaling: half` at the paper's rate.

In a federation FedAvg's network dies under Adam all the same: of 20 clients (scale small) on PATH in 3 of 3 seeds and
on LSQS in 2 of 3, at medium, with an MLP, on PATH in 5 of 5. The paper states FedAvg's rate and not its optimiser. The
rule for optimisers that it does not state, written on 2026-11-23 before any run of the suites under it, and after runs
of ten rounds that showed FedAvg alive under SGD:

    1. as FLIU's: Adam, its state fresh in each round, at the stated rate
    2. of a method whose networks give one answer to all inputs under 1., in three seeds or more of some environment:
       plain SGD (McMahan's, for FedAvg) at the stated rate, in all environments of that data set

It says nothing about which method is better, and makes FedAvg SGD on MNIST. FLIU stays under Adam, so a difference
between the two may be the optimiser's. `--set training.optimiser=sgd` runs both under one.
"""

from functools import partial

from pfl_ops.papers.sources.fliu import DEPARTURES, SOURCES
from pfl_ops.papers.suite import Axis, Level, Measure, Scale, Suite

BASE = {
    "data.train_size": None,
    "data.scaling": "half",
    "partition.clients": 100,
    "participation.share": 1.0,
    "participation.weighting": "samples",
    "training.rounds": 100,
    "training.local_epochs": 5,
    "training.batch_size": 50,
    "training.momentum": 0.0,
    "training.weight_decay": 0.0,
    "training.lr_decay": 0.99,
    "evaluation.global_every": 1,
    "evaluation.subset": 1000,
}
MNIST = {"data.name": "mnist", "model.name": "cnn", "training.lr": 0.01}
CIFAR = {"data.name": "cifar10", "model.name": "cnn_cifar", "training.lr": 0.001}

ENVIRONMENTS: Axis = {
    "iid": Level({"partition.kind": "iid"}, "IID"),
    "path": Level({"partition.kind": "path", "partition.classes_per_client": 2}, "PATH"),
    "ls": Level({"partition.kind": "ls", "partition.alpha": 1.0}, "LS"),
    "qs": Level({"partition.kind": "qs", "partition.alpha": 1.0}, "QS"),
    "lsqs": Level({"partition.kind": "lsqs", "partition.alpha": 1.0}, "LSQS"),
}
SKEWED: Axis = {name: ENVIRONMENTS[name] for name in ("ls", "qs", "lsqs")}


def _adam(title: str, method: str, **gamma: object) -> Level:
    schedule = {f"algorithm.gamma.{field}": value for field, value in gamma.items()}
    return Level({"algorithm.name": method, **schedule, "training.optimiser": "adam"}, title)


CLT = {"local": _adam("CLT", "local")}
FEDAVG = {"fedavg": _adam("FedAvg", "fedavg")}
FEDAVG_ON_MNIST = {"training.optimiser": "sgd"}
"""By the rule above."""
FLIU = {"fliu": _adam("FLIU", "fliu", kind="adaptive")}
FIXED: Axis = {
    f"fliu{percent}": _adam(f"FLIU{percent}", "fliu", kind="fixed", value=percent / 100)
    for percent in (10, 25, 50, 75, 90)
}
APFL = {"apfl": Level({"algorithm.name": "apfl", "training.optimiser": "sgd", "training.lr": 0.1}, "APFL")}
FEDFOMO = {
    "fedfomo": Level(
        {
            "algorithm.name": "fedfomo",
            "algorithm.candidates": 5,
            "training.optimiser": "sgd",
            "training.lr": 0.01,
            "training.lr_decay": 1.0,
        },
        "FedFomo",
    )
}
FEDFOMO_ON_CIFAR = {"training.lr": 0.1}

APFL_LIBRARY = {
    "apfl_library": Level(
        {**APFL["apfl"].changes, "algorithm.mixing": "round", "algorithm.every": "step"}, "APFL, PFLlib's"
    )
}
FEDFOMO_LIBRARY = {
    "fedfomo_library": Level(
        {
            **FEDFOMO["fedfomo"].changes,
            "algorithm.explore": 0.0,
            "algorithm.fallback": "trained",
            "algorithm.own": "sent",
        },
        "FedFomo, PFLlib's",
    )
}
LIBRARY: Axis = {**APFL_LIBRARY, **FEDFOMO_LIBRARY}
"""PFLlib's readings, from which the paper's numbers come. No claim is judged by them."""

OWN: Axis = {**CLT, **FEDAVG, **FLIU, **FIXED}
COMPARED: Axis = {**CLT, **FEDAVG, **APFL, **FEDFOMO, **LIBRARY, **FLIU}
"""Methods of the exhibits without and with those of other papers."""

L1_LOCAL, L1_GLOBAL, L1 = "test/L1/local/mean", "test/L1/global/mean", "test/L1/acc"
L2_LOCAL, L2_GLOBAL, L2 = "test/L2/local/mean", "test/L2/global/mean", "test/L2/acc"
G = "test/G/global/mean"

STAGES = (
    Measure(L1_LOCAL, "L1 Acc(L)"),
    Measure(L1_GLOBAL, "L1 Acc(G)"),
    Measure(L1, "L1 Acc"),
    Measure(L2_LOCAL, "L2 Acc(L)"),
    Measure(L2_GLOBAL, "L2 Acc(G)"),
    Measure(L2, "L2 Acc"),
    Measure(G, "G Acc(G)"),
)

LITTLE = {
    "data.train_size": 2000,
    "partition.clients": 20,
    "training.local_epochs": 2,
    "training.batch_size": 20,
    "training.rounds": 10,
    "evaluation.subset": 100,
}
SMALL = Scale(
    LITTLE,
    repetitions=3,
    note="20 clients of 100 images, 10 local steps a round instead of 60, 10 rounds: about a minute on one core.",
)
SMALL_CIFAR = Scale(
    {**LITTLE, "model.name": "cnn6"},
    repetitions=3,
    note="20 clients of 100 images, 10 local steps a round instead of 50, 10 rounds, and a network of two "
    "convolutions (PFLlib's), five times as fast as the paper's.",
)
MEDIUM = Scale(
    {"model.name": "mlp"},
    note="An MLP of 200-200 in place of the CNN. A run is 600,000 minibatches on MNIST, 500,000 on CIFAR-10: about "
    "1.2 and 4.6 ms of one core each, where the CNNs take 64 and 87 ms.",
)
SMOKE = Scale({"model.name": "cnn_tiny"}, note="A tiny network: the paper's takes seconds a round even so.")

fliu_suite = partial(
    Suite,
    spread_over="repetitions",
    repetitions=3,
    sources=SOURCES,
    departures=DEPARTURES,
    medium=MEDIUM,
    small=SMALL,
    smoke=SMOKE,
)
"""A suite of this paper, with what most of them share."""

on_mnist = partial(fliu_suite, base={**BASE, **MNIST}, exceptions={"*/fedavg": FEDAVG_ON_MNIST})
"""A suite of MNIST alone."""
