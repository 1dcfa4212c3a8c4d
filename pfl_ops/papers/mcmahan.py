"""McMahan et al. 2017, Table 1: rounds of FedAvg to 99 % of MNIST, IID and in shards. A public table.

The paper states 100 clients of 600 images, 10 of them a round, E = 5, B = 10, its CNN, and 99 % of the test set. It
takes for each cell the learning rate of a grid that reaches the target first, and prints none. The source's rule looks
at test data; the rule of choice here (`--choose`) looks at validation data.
"""

from pfl_ops.papers.exhibits import Curves, Grid
from pfl_ops.papers.published import load
from pfl_ops.papers.rules import ChoiceRule
from pfl_ops.papers.sources import mcmahan as sources
from pfl_ops.papers.suite import Level, Measure, Scale, Suite

ACC = "test/G/global/mean"
TO_99 = f"{ACC}@99"

RULE = ChoiceRule(
    name="mcmahan",
    suites=("mcmahan/table1",),
    cells={"iid": "iid/fedavg", "non_iid": "non_iid/fedavg"},
    shared={"training.lr": {"float": [0.01, 0.5], "log": True}},
    metric="val/G/global/mean",
    trials=8,
    confirm=3,
    confirm_top=2,
    seed=1000,
    before={label: {"training.lr": 0.1} for label in ("iid", "non_iid")},
    remarks="A search looks at the accuracy of the last round, the table at the round in which a target is reached.",
)

TABLE_1 = Suite(
    name="mcmahan/table1",
    title="FedAvg on MNIST, CNN: rounds to 99 %, IID and 200 sorted shards",
    source="McMahan et al. 2017 (arXiv 1602.05629), Table 1, CNN, E = 5, C = 0.1, B = 10",
    base={
        "data.name": "mnist",
        "data.train_size": None,
        "data.scaling": "unit",
        "partition.clients": 100,
        "model.name": "cnn",
        "participation.share": 0.1,
        "participation.weighting": "samples",
        "training.rounds": 400,
        "training.local_epochs": 5,
        "training.batch_size": 10,
        "training.optimiser": "sgd",
        "training.lr": 0.1,
        "training.lr_decay": 1.0,
        "training.momentum": 0.0,
        "training.weight_decay": 0.0,
        "evaluation.stages": ("G",),
        "evaluation.global_every": 1,
        "evaluation.subset": None,
        "evaluation.clients": 10,
    },
    axes={
        "split": {
            "iid": Level({"partition.kind": "iid", "partition.stratified": False, "training.rounds": 60}, "IID"),
            "non_iid": Level({"partition.kind": "sorted_shards", "partition.shards_per_client": 2}, "non-IID"),
        },
        "method": {"fedavg": Level({"algorithm.name": "fedavg"}, "FedAvg")},
    },
    measures=(
        Measure(TO_99, "rounds to 99 %", digits=0, better="low"),
        Measure(f"{ACC}@97", "rounds to 97 %", digits=0, better="low"),
        Measure(f"{ACC}#best", "highest round"),
        Measure(ACC, "last round"),
    ),
    exhibits=(
        Grid(rows=("split",), columns=("measure",), caption="Rounds to a target, and accuracy of Θ in percent"),
        Curves(ACC, target=0.99, caption="Accuracy of Θ on the test set", ylabel="accuracy"),
    ),
    published=load("mcmahan_table1"),
    repetitions=5,
    sources=sources.SOURCES,
    departures=sources.DEPARTURES,
    rule=RULE,
    medium=Scale({"model.name": "mlp"}, note="An MLP of 200-200 in place of the CNN: compare the rounds to 97 %."),
    small=Scale(
        {"data.train_size": 12_000, "model.name": "cnn_tiny", "training.rounds": 40},
        repetitions=3,
        note="12,000 images, 120 a client, a tiny CNN, 40 rounds: 99 % is out of reach.",
    ),
    smoke=Scale({"model.name": "cnn_tiny"}, note="A tiny network."),
)

SUITES = (TABLE_1,)
