"""NIID-Bench's table of label skew as rerun by Flower: FedAvg, SCAFFOLD and FedProx. A public table.

Li, Diao, Chen, He, "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022, run again with Flower.
The source states 10 clients, all of them in each of 50 rounds of 10 epochs, B 64, SGD at 0.01 with momentum 0.9 and
weight decay 1e-5, and a network of 6 and 16 channels and 120 and 84 units. It prints the best accuracy across all
rounds. That rule can't be used: it looks at the test data to choose the round. The table shows ours by that rule beside
the last round. Its rows of FedNova, which is no method here, and of one class a client are left out.
"""

from pfl_ops.papers.exhibits import Curves, Grid
from pfl_ops.papers.published import load
from pfl_ops.papers.sources import niid_bench as sources
from pfl_ops.papers.suite import Axis, Level, Measure, Scale, Suite

ACC = "test/G/global/mean"
BEST = f"{ACC}#best"

SPLITS: Axis = {
    "iid": Level({"partition.kind": "iid", "partition.stratified": False}, "IID"),
    "dir05": Level(
        {"partition.kind": "dirichlet", "partition.alpha": 0.5, "partition.cap": True, "partition.min_size": 10},
        "Dir(0.5)",
    ),
    "c2": Level({"partition.kind": "path", "partition.classes_per_client": 2}, "#C = 2"),
    "c3": Level({"partition.kind": "path", "partition.classes_per_client": 3}, "#C = 3"),
}
METHODS: Axis = {
    "fedavg": Level({"algorithm.name": "fedavg"}, "FedAvg"),
    "scaffold": Level({"algorithm.name": "scaffold", "training.momentum": 0.0}, "SCAFFOLD"),
    "fedprox": Level({"algorithm.name": "fedprox", "algorithm.mu": 0.01}, "FedProx"),
}

LABEL_SKEW = Suite(
    name="niid_bench/label_skew",
    title="Label skew with 10 clients: FedAvg, SCAFFOLD, FedProx",
    source="NIID-Bench as rerun by Flower: accuracy of Θ, best of 50 rounds on test data; ours: best and last round",
    base={
        "data.train_size": None,
        "data.scaling": "standard",
        "partition.clients": 10,
        "model.name": "lenet5",
        "participation.share": 1.0,
        "participation.weighting": "samples",
        "training.rounds": 50,
        "training.local_epochs": 10,
        "training.batch_size": 64,
        "training.optimiser": "sgd",
        "training.lr": 0.01,
        "training.lr_decay": 1.0,
        "training.momentum": 0.9,
        "training.weight_decay": 1e-5,
        "evaluation.stages": ("G",),
        "evaluation.global_every": 1,
        "evaluation.subset": None,
    },
    axes={
        "data": {
            "mnist": Level({"data.name": "mnist"}, "MNIST"),
            "fashion_mnist": Level({"data.name": "fashion_mnist"}, "Fashion-MNIST"),
            "cifar10": Level({"data.name": "cifar10"}, "CIFAR-10"),
        },
        "split": SPLITS,
        "method": METHODS,
    },
    measures=(Measure(BEST, "best round on test"), Measure(ACC, "last round")),
    exhibits=(
        Grid(
            rows=("method",),
            columns=("split",),
            blocks=("data",),
            measures=(BEST,),
            caption="Best round on test data, percent: no rule that could be used",
        ),
        Grid(rows=("method",), columns=("split",), blocks=("data",), measures=(ACC,), caption="Last round, percent"),
        Curves(ACC, cells="cifar10/*/*", panel="split", caption="CIFAR-10", ylabel="accuracy"),
    ),
    published=load("niid_bench_label_skew"),
    repetitions=3,
    sources=sources.SOURCES,
    departures=sources.DEPARTURES,
    medium=Scale(note="The same as full: the network can be trained on CPUs."),
    small=Scale(
        {"data.train_size": 6000, "training.rounds": 15, "training.local_epochs": 5},
        repetitions=3,
        note="6,000 images, 600 a client, 15 rounds of 5 epochs.",
    ),
    smoke=Scale({"model.name": "cnn_tiny"}, note="A tiny network."),
)

SUITES = (LABEL_SKEW,)
