"""Setting of FedAvg2Rep (fourth seed): data, networks, methods, measures, sizes.

The setting, as far as it is stated: 100 clients, 10 % of them a round, plain means of their models. CIFAR-100 on
FakeLeNet-5, all 50,000 training images, 500 a client, N_C classes each; η 0.1, no momentum, weight decay 4e-3; J
local steps a round over R = 2000 · 4/J rounds. Shakespeare on CharLSTM, 100 roles with 2,000 records each; η 1;
R = 200 · 4/J. FedAvg2Rep begins with 500 rounds of FedAvg with J = 4 and goes on for 1500 · 4/J rounds in which a
client takes J − 1 steps of the head and one of the whole model; FedRep has 2000 · 4/J such rounds and no others,
*pre-trained* 1500 · 4/J from weights of Tiny ImageNet. All data in one place: η 0.01, B 64, momentum 0.9, weight decay
4e-4, cosine annealing.

The score is the global model's accuracy on the global test set. The paper publishes one number a cell: neither how many
runs stand behind it, nor a spread.
"""

from functools import partial

from pfl_ops.papers.suite import Axis, Changes, Level, Measure, Scale, Suite, method

ACC = "test/G/global/mean"
TOP_1 = Measure(ACC, "Top-1 accuracy", digits=1)

BASE: Changes = {
    "data.train_size": None,
    "participation.share": 0.1,
    "participation.weighting": "uniform",
    "training.batch_size": 64,
    "training.optimiser": "sgd",
    "training.lr_decay": 1.0,
    "training.momentum": 0.0,
    "evaluation.every": 10,
    "evaluation.global_every": 500,
    "evaluation.clients": 10,
}
CIFAR: Changes = {
    "data.name": "cifar100",
    "model.name": "fakelenet5",
    "partition.clients": 100,
    "training.lr": 0.1,
    "training.weight_decay": 4e-3,
    "evaluation.subset": None,
}
SHAKESPEARE: Changes = {
    "data.name": "shakespeare",
    "data.roles": 100,
    "data.records": 2000,
    "model.name": "char_lstm",
    "partition.clients": 100,
    "training.lr": 1.0,
    "training.weight_decay": 0.0,
    "evaluation.subset": 5000,
}
SMALL_CIFAR: Changes = {
    "data.train_size": 10_000,
    "model.name": "cnn_tiny",
    "model.hidden": 64,
    "training.batch_size": 20,
}
SMALL_SHAKESPEARE: Changes = {"data.records": 200, "model.hidden": 64, "training.batch_size": 32}


def images(title: str, kind: str, labels: int | None = None) -> Level:
    """CIFAR-100 split by `kind`; at smoke its 8 clients need 13 classes each, or some would be left over."""
    chosen: Changes = {"partition.classes_per_client": labels} if labels else {}
    fewest: Changes = {"partition.classes_per_client": max(13, labels)} if labels else {}
    shuffled: Changes = {"partition.stratified": False} if kind == "iid" else {}
    return Level(
        {**CIFAR, "partition.kind": kind, **chosen, **shuffled},
        title,
        at={"small": SMALL_CIFAR, "smoke": {"model.name": "cnn_tiny", **fewest}},
    )


def lines(title: str, kind: str) -> Level:
    """Shakespeare split by `kind`."""
    at = {"small": SMALL_SHAKESPEARE, "smoke": {"model.hidden": 16}}
    return Level({**SHAKESPEARE, "partition.kind": kind}, title, at=at)


IID = images("CIFAR-100, IID", "iid")
SHAKESPEARE_IID = lines("Shakespeare, IID", "iid")
LEAF_IID: Axis = {
    "shakespeare_leaf": Level(
        {
            **SHAKESPEARE,
            "partition.kind": "iid",
            "partition.stratified": False,
            "data.pooled": True,
            "data.test_share": 0.2,
        },
        "Shakespeare, LEAF's IID",
        at=SHAKESPEARE_IID.at,
    )
}
"""LEAF's IID sampling: the records of all users are pooled, shuffled and dealt to new users, of as many users as there
were (iu = 1); each new user's records are then split into training and test records, here 2,000 and 500. No claim is
judged by it."""
LABELS: Axis = {f"nc{labels}": images(f"N_C = {labels}", "shards", labels) for labels in (50, 10, 5, 1)}
OWN: Axis = {"shakespeare": lines("Shakespeare", "natural")}

STEPS: Axis = {
    f"j{steps}": Level(
        {"training.local_steps": steps, "training.rounds": 2000 * 4 // steps},
        f"J = {steps}",
        at={"small": {"training.rounds": 240 * 4 // steps}},
    )
    for steps in (4, 8, 16)
}
FOUR: Axis = {"j4": STEPS["j4"]}

FEDAVG: Axis = {"fedavg": method("FedAvg", "fedavg")}
CENTRALIZED = Level(
    {
        "algorithm.name": "centralized",
        "algorithm.schedule": "cosine",
        "training.local_epochs": 1,
        "training.rounds": 140,
        "training.lr": 0.01,
        "training.batch_size": 64,
        "training.momentum": 0.9,
        "training.weight_decay": 4e-4,
    },
    "Centralized",
    at={"small": {"training.rounds": 40, "training.batch_size": 64}},
)
HYBRIDS: Axis = {
    "fedrep": method("FedRep", "fedavg2rep", warm_up=0),
    "pretrained": Level(
        {"algorithm.name": "fedavg2rep", "algorithm.warm_up": 0, "model.weights": "tiny_imagenet.safetensors"},
        "Pre-trained",
        at={"smoke": {"model.weights": None}},
    ),
    "fedavg2rep": Level(
        {"algorithm.name": "fedavg2rep", "algorithm.warm_up": 500, "algorithm.warm_up_steps": 4},
        "FedAvg2Rep",
        at={"small": {"algorithm.warm_up": 60}, "smoke": {"algorithm.warm_up": 1}},
    ),
}


def rounds(paper: int, small: int) -> Level:
    """So many rounds; `small`: at that scale."""
    return Level({"training.rounds": paper}, at={"small": {"training.rounds": small}})


ROUNDS_SHAKESPEARE = {f"*/j{steps}/fedavg": rounds(200 * 4 // steps, 200 * 4 // steps) for steps in (4, 8, 16)}
ROUNDS_HYBRIDS = {
    **{f"*/j{steps}/pretrained": rounds(1500 * 4 // steps, 180 * 4 // steps) for steps in (4, 8, 16)},
    **{f"*/j{steps}/fedavg2rep": rounds(500 + 1500 * 4 // steps, 60 + 180 * 4 // steps) for steps in (4, 8, 16)},
}

# -- what the paper does not say ---------------------------------------------------------------------------------------

LAST = "which round is scored is not said (last: ours)"
UNMEASURED = ("Whether federated training augments images is not said: here it does not.",)
WITHOUT_FILE = (
    "Pre-trained needs weights of Tiny ImageNet, which is not among the data that can be had here. It runs where the "
    "working folder has tiny_imagenet.safetensors: FakeLeNet-5's parameters (a classifier of other width is drawn "
    "anew), as `centralized` leaves them on an .npz file of that data set; at small they must be those of cnn_tiny "
    "with 64 units. At smoke it starts from fresh weights, and no claim is judged.",
)
MEDIUM = Scale(
    note="The same as full: FakeLeNet-5 and CharLSTM can be trained on CPUs. A run on CIFAR-100 is 80,000 minibatches "
    "of 0.1 s of one core: two cores take some four days for Table 3, and eleven for Table 4."
)
SMALL_IMAGES = "cnn_tiny in place of FakeLeNet-5 and 10,000 images"
SMALL_LINES = "CharLSTM with 64 units and 200 records a role"

fedavg2rep_suite = partial(Suite, base=BASE, measures=(TOP_1,), repetitions=5, medium=MEDIUM)
"""A suite of this paper. The paper names no number of runs: a claim of one seed could never be judged."""
