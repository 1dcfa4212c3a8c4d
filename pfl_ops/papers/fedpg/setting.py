"""Setting of FedPG (third seed): data, networks, methods, measures, sizes.

The setting, as far as it is stated: 100 clients on Fashion-MNIST (an MLP), CIFAR-10 (a CNN) and CIFAR-100
(NF-ResNet-18); SGD with 5 local epochs, a learning rate of 0.01, 0.05 or 0.1 that decays by 0.999 a round, whichever
is best for a method; 5 runs.

    Table 1, Figure 4   Dir(0.1), 10 % of the clients online, B 50, 2000 rounds
    Table 2             Pat-2, 10 % online; B and the rounds are not said
    Figure 5            Pat-2, all clients online, B 50; the rounds are not said

What is scored is a *personal model* of each client, P, on equally large test sets: L-acc on its own, G-acc on those of
all clients, S-acc(c) on its own and those of c % of the others; and Θ on those of all clients, GM. In measures the
stage P stands for v_k of FedPG (L1), for what a client holds of the methods that personalise (L1), and for a client's
model just trained, before it is averaged, of those with a global model only (L2: Section 4, after Chen and Chao).
"""

from dataclasses import replace
from functools import partial

from pfl_ops.metrics import SWEEP
from pfl_ops.papers import suite
from pfl_ops.papers.suite import Axis, Changes, Level, Measure, Scale, Suite

LOCAL, SOME, ALL = "test/P/local/mean", "test/P/synthetic_50/mean", "test/P/synthetic_100/mean"
GLOBAL = "test/G/local/mean"  # on test sets of one size, the same as on all of them joined

MEASURES = (
    Measure(LOCAL, "PM L-acc", unit=1, digits=3),
    Measure(SOME, "PM S-acc", unit=1, digits=3),
    Measure(ALL, "PM G-acc", unit=1, digits=3),
    Measure(GLOBAL, "GM acc", unit=1, digits=3),
)

BASE: Changes = {
    "data.train_size": None,
    "partition.clients": 100,
    "participation.share": 0.1,
    "participation.weighting": "uniform",
    "training.rounds": 2000,
    "training.local_epochs": 5,
    "training.batch_size": 50,
    "training.optimiser": "sgd",
    "training.lr": 0.05,
    "training.lr_decay": 0.999,
    "training.momentum": 0.0,
    "training.weight_decay": 0.0,
    "evaluation.synthetic": SWEEP,
    "evaluation.equal_tests": True,
    "evaluation.every": 20,
    "evaluation.global_every": 100,
}
DIRICHLET: Changes = {**BASE, "partition.kind": "dirichlet", "partition.alpha": 0.1}
PAT_2: Changes = {**BASE, "partition.kind": "pat", "partition.classes_per_client": 2}

UNMEASURED = (
    "The learning rate is not chosen for each method, as the paper does.",
    "A client that was absent in the last round is scored, where methods have a global model only, with what it would "
    "have trained in that round; the authors' code takes the model of its last own round.",
)


def datasets(**small: Changes) -> Axis:
    """The data sets with their networks; `small`: what that scale changes of each."""
    tiny: Changes = {"model.name": "cnn_tiny"}
    fashion = Level({"data.name": "fashion_mnist", "model.name": "mlp"}, "FMNIST", at={"small": small["fmnist"]})
    others = {
        name: Level(
            {"data.name": name, "model.name": model}, title, at={"small": {**tiny, **small[name]}, "smoke": tiny}
        )
        for name, model, title in (("cifar10", "fakelenet5", "CIFAR-10"), ("cifar100", "nf_resnet18", "CIFAR-100"))
    }
    return {"fmnist": fashion, **others}


DATASETS = datasets(
    fmnist={"data.train_size": 12_000, "training.rounds": 60},
    cifar10={"data.train_size": 4_000, "training.rounds": 20},
    cifar100={"data.train_size": 4_000, "training.rounds": 20, "model.hidden": 64},
)
FEW: Changes = {
    "partition.clients": 20,
    "participation.share": 0.2,
    "evaluation.every": 5,
    "evaluation.global_every": 20,
}
NETWORK = "cnn_tiny in place of the CNN and of NF-ResNet-18 (9 samples a second and core)"
MEDIUM = Scale(
    {"model.name": "mlp"},
    note="Fashion-MNIST's MLP of 200-200 on CIFAR-10 and CIFAR-100 too, in place of the CNN (3 ms of one core a "
    "minibatch, where the CNN takes 86 ms) and of NF-ResNet-18",
)


def method(title: str, name: str, stage: str = "L1", *, smoke: Changes | None = None, **settings: object) -> Level:
    """A method; `stage`: where its personal models are."""
    return replace(suite.method(title, name, **settings), at={"smoke": smoke or {}}, stages={"P": stage})


BASELINES: Axis = {
    "local": method("Local", "local"),
    "fedavg": method("FedAvg", "fedavg", "L2"),
    "fedprox": method("FedProx", "fedprox", "L2"),
    "apfl": method("APFL", "apfl", alpha=0.1),
    "pfedme": method("pFedMe", "pfedme", lam=0.1, smoke={"algorithm.inner_steps": 2}),
    "ditto": method("Ditto", "ditto", lam=0.1),
    "fedamp": method("FedAMP", "fedamp", lam=0.1),
    "fedfomo": method("FedFomo", "fedfomo"),
    "fedrep": method("FedRep", "fedrep", head_epochs=1, body_epochs=4, smoke={"algorithm.body_epochs": 1}),
    "fedrod": method("FedROD", "fedrod"),
    "splitgp": method("SplitGP", "splitgp"),
    "fedmgda_plus": method("FedMGDA+", "fedmgda_plus", "L2", eps=0.1, global_lr=None),
}
FEDPG: Axis = {"fedpg": method("FedPG", "fedpg"), "s_fedpg": method("S-FedPG", "s_fedpg")}
LARGER: Axis = {f"fedpg_{gamma}": method(f"FedPG γ={gamma}", "fedpg", gamma=gamma) for gamma in (0.3, 0.6, 1.0)}
READINGS: Axis = {
    "fedamp_absolute": method("FedAMP, absolute σ", "fedamp", unit="absolute", alpha=5e-3, sigma=0.1, lam=5e-7),
    "s_fedpg_last": method("S-FedPG, last step", "s_fedpg", failing="last"),
    **{
        f"{label}_cap": Level(
            {"algorithm.name": label, "partition.cap": True}, f"{title}, sizes capped", stages=method("", label).stages
        )
        for label, title in (("local", "Local"), ("fedpg", "FedPG"))
    },
}
"""The paper's own readings, or other readings of it, beside ours. No claim is judged by them."""
COMPARED: Axis = {**BASELINES, **FEDPG}
METHODS: Axis = {**COMPARED, **LARGER, **READINGS}

OTHERS = f"{{{','.join(BASELINES)}}}"
WITH_GLOBAL = f"{{{','.join(name for name in BASELINES if name not in ('local', 'fedamp'))}}}"

fedpg_suite = partial(Suite, repetitions=5, medium=MEDIUM)
"""A suite of this paper, with what all of them share."""
