"""Origins of the settings of FedAS' suites."""

from pfl_ops.papers.provenance import Departure, Sources, assumed, assumed_of, departed, stated

CODE = "not stated: the published code's"
DEFAULT = "not stated: this package's default"
OWN_PAPER = "not stated: its own paper's"
SEVERAL = "5: not stated; a paired test over seeds needs several"
FEDAS = {"algorithm.name": "fedas"}
METHODS = [
    "fedavg_ft", "fedprox_ft", "fedper", "ditto", "lg_fedavg", "fedbabu", "fedproto", "fedala", "fedpac", "fedas",
]  # fmt: skip


SOURCES: Sources = (
    # data and clients
    *assumed("CIFAR-10: not stated of this exhibit", "data.name"),
    *stated("Sec. 4.1: 60,000 images", {"data.train_size": None}),
    *assumed("not stated: the published code merges training and test set, then splits each client's samples",
             "data.pooled"),
    *assumed("25 %: the published code's", "data.test_share"),
    *assumed("by mean and deviation of the training data: not stated; the published code has (x - 0.5) / 0.5",
             "data.scaling"),
    *stated("Sec. 4.1", {"partition.kind": "dirichlet", "partition.clients": 20}),
    *assumed("β 0.1, as in Fig. 5: not stated of this exhibit", "partition.alpha"),
    *assumed("clients' shares are drawn for each class: the paper cites its scheme", "partition.per"),
    *assumed("not stated: the published code feeds no client beyond n/N", "partition.cap"),
    *assumed(f"40 samples: {CODE}", "partition.min_size"),
    *assumed("a new partition in each repetition: not stated", "partition.seed"),
    # networks
    *assumed('the published code\'s network, where the paper says "a 6-layer CNN" (Sec. 4.1)', "model.name"),
    *assumed(f"512: {CODE}", "model.hidden"),
    *assumed("drawn by PyTorch's default rules from the seed: not stated", "model.weights"),
    # methods
    *assumed(DEFAULT, "algorithm.*"),
    *stated("Sec. 4.1, Counterparts", {"algorithm.name": METHODS}),
    *assumed("as long as a round's training: not stated", "algorithm.fine_epochs",
             when={"algorithm.name": ["fedavg_ft", "fedprox_ft"]}),
    *assumed_of("fedprox_ft", "0.01: not stated", "mu"),
    *assumed_of("fedbabu", OWN_PAPER, "fine_epochs"),
    *assumed(OWN_PAPER, "algorithm.lam", when={"algorithm.name": ["ditto", "fedproto", "fedpac"]}),
    *assumed_of("fedala", OWN_PAPER, "share"),
    *assumed_of("fedpac", OWN_PAPER, "head_lr"),
    *stated("Algorithm 1, Sec. 3.2", {"algorithm.align": "receipt"}, when=FEDAS),
    *stated("rows of Table 4", {"algorithm.align": "off", "algorithm.synchronize": False}, when=FEDAS),
    *stated("Sec. 3.4, Fig. 4b", {"algorithm.align": ["parallel", "global"]},
            "their details are not stated: a loss term of weight 1 beside training; class means of all others"),
    *assumed_of("fedas", "the published code's rate; its loss is the mean over samples and features", "align_lr"),
    departed("algorithm.align_rule", "one step of rate 1 on the squared distance of all features", "Eq. 3, 4",
             "one pass of minibatches on the mean, as in the published code; the letter's step grows with n_k",
             when=FEDAS),
    *stated("Sec. 3.3", {"algorithm.synchronize": True}, when=FEDAS),
    departed("algorithm.fisher", "the square of the gradient of the whole data", "Eq. 5, 6",
             "the mean over samples of squared gradients; by the letter α grows with n_k²",
             when={**FEDAS, "algorithm.fisher": "sample"}),
    *stated("Eq. 5, 6", {"algorithm.fisher": "dataset"}, when=FEDAS),
    *assumed("the published code's sum over batches", "algorithm.fisher", when={"algorithm.fisher": "batch"}),
    *stated("Eq. 7; Sec. 4.3 for softmax and min-max", {"algorithm.normalise": ["proportional", "softmax", "min_max"]},
            "min-max is divided by its sum, which the paper's formula is not", when=FEDAS),
    departed("algorithm.shrink", "the weights α' are divided by m once more", "Eq. 8",
             "they already sum to 1: by the letter Θ moves by 1/m of the mean change",
             when={**FEDAS, "algorithm.shrink": False}),
    *stated("Eq. 8", {"algorithm.shrink": True}, when=FEDAS),
    *stated("Sec. 3.1", {"algorithm.split": "head"}, when=FEDAS),
    *stated("Sec. 4.3", {"algorithm.split": "channels"}, "features are those of the whole model, Sec. 3.2", when=FEDAS),
    # training
    *stated("Sec. 4.1",
            {"training.rounds": 40, "training.local_epochs": 5, "training.batch_size": 16, "training.optimiser": "sgd",
             "training.lr": 0.005}),
    departed("training.lr_decay", "a decay value of 1e-3", "Sec. 4.1",
             "no rule is given, and 1e-3 can be no factor on a round's rate: no decay"),
    *assumed("0: not stated", "training.momentum", "training.weight_decay"),
    *assumed("cross entropy, FedAS' (Algorithm 1): not stated of the other methods", "training.loss"),
    *stated("Algorithm 1", {"training.loss": "cross_entropy"}, when=FEDAS),
    *assumed("single precision: not stated", "training.precision"),
    # participation
    *assumed("P 0.6, as in Fig. 5: not stated of this exhibit", "participation.share"),
    *assumed("uniform: not stated", "participation.kind"),
    *stated("Sec. 3.1: 1/m", {"participation.weighting": "uniform"}, "the published code weighs by samples"),
    # scores
    *assumed("each client's own test samples, clients weigh alike: not stated; the published code pools the samples",
             "evaluation.split"),
    *assumed("all clients: not stated", "evaluation.clients"),
    *assumed("absent clients train once more before the last score: not stated; in Algorithm 1 a round's clients train",
             "evaluation.absent"),
    *assumed("absent clients stay as last trained: in Algorithm 1 a round's clients train", "evaluation.absent",
             when={"evaluation.absent": "last"}),
    *assumed("from 0: not stated of this exhibit", "seed"),
    *assumed(SEVERAL, "repetitions"),
)  # fmt: skip

ACCURACIES: Sources = (
    *stated("Sec. 4.1", {"seed": 0}),
    departed("repetitions", "1", "Sec. 4.1: seed 0, hence one run", "5: a paired test over seeds needs several"),
)
"""Of the tables: "for all the accuracy value in tables" the seed is 0."""

COMPARED: Sources = (
    *SOURCES,
    *stated("Sec. 4.2; column heads", {"partition.alpha": [0.1, 0.3, 0.5], "participation.share": [0.2, 0.4, 0.6, 1.0]},
            "Sec. 4.2 calls a larger β more skewed, which is wrong for a Dirichlet split"),
    *ACCURACIES,
)  # fmt: skip
TABLE_2: Sources = (
    *COMPARED,
    *assumed("the caption says Cifar10, as Table 3's does; the far lower values are CIFAR-100's", "data.name"),
)
TABLE_3: Sources = (*COMPARED, *stated("caption of Table 3", {"data.name": "cifar10"}))

TABLE_4: Sources = (
    *SOURCES,
    *ACCURACIES,
    *stated("column heads", {"participation.share": [0.2, 0.4, 0.6, 1.0]}),
    *assumed("not stated: its first and last row equal Table 3's FedPer and FedAS at β 0.1",
             "data.name", "partition.alpha"),
)  # fmt: skip

FIGURE_5: Sources = (
    *SOURCES,
    *stated("captions of Figs. 5a and 5b", {"data.name": ["cifar10", "cifar100"]}),
    *stated("caption", {"partition.alpha": 0.1, "participation.share": 0.6}),
)

SUBSTITUTED: Sources = (
    *SOURCES,
    *stated("Sec. 3.3: 5 %", {"algorithm.substitute": 0.05},
            "what replaces parameters, and which accuracy falls, is not stated: their values of before all training, "
            "and the client's own training samples; Fisher information by batches"),
)  # fmt: skip

STRAGGLERS: Sources = (
    *SOURCES,
    *stated("Sec. 3.4", {"participation.stragglers": 0.5}, when={"participation.kind": "stragglers"}),
    *stated("Sec. 3.3, 3.4", {"participation.kind": "stragglers"}),
    *assumed(
        "stragglers are drawn with a tenth of the others' probability: not stated. At P 0.6 every cohort has some of "
        "either",
        "participation.chance",
    ),
)
"""Of Figure 4a."""

FIGURE_3B: Sources = (
    *STRAGGLERS,
    *assumed("half, as in Fig. 4a (Sec. 3.4): not stated of this figure", "participation.stragglers"),
)

DECOUPLED: Sources = (
    *SOURCES,
    *stated("Sec. 4.3", {"algorithm.name": ["cd2_pfed", "fedas"]}),
    *assumed("half of the channels are private in the last round: not stated", "algorithm.channels.share",
             "algorithm.share"),
    *assumed("off: PA alone is added to CD2-pFed", "algorithm.synchronize"),
)  # fmt: skip
"""Of Figure 6b."""

FIGURE_7: Sources = (
    *SOURCES,
    *stated("Sec. 4.3", {"training.batch_size": [8, 16, 32, 64], "training.local_epochs": [1, 2, 5, 10]}),
    *assumed("such that E · rounds / B is as at B 16, E 5 and 40 rounds: derived from the same number of update steps",
             "training.rounds", when={"training.rounds": [20, 80, 100, 160, 200]}),
)  # fmt: skip

DEPARTURES: tuple[Departure, ...] = (
    Departure(
        'The paper reports the "highest top-1 accuracy" of all rounds (Sec. 4.1): here the last round counts, and the '
        "tables have the highest beside it.",
        "after local training only a round's cohort is scored, so that below P = 1 the highest is that of a lucky "
        "cohort",
    ),
    Departure(
        "At P < 1 the paper's absent clients stay as last trained: here every absent client trains from the last Θ "
        "before the last score, so that all are scored after local training (L2).",
        "FedAvg-P and FedAS with absent clients as last trained (`evaluation.absent: last`) are rows of Tables 2 and "
        "3; `--set evaluation.absent=last` runs all methods so",
    ),
    Departure(
        "Eq. 8 divides the weights by m once more (`algorithm.shrink`), and the letter of Eq. 5 and 6 squares the "
        "summed gradient (`algorithm.fisher: dataset`): here neither.",
        "both together are the row FedAS, Eq. 5 to 8 of Tables 2 to 4",
    ),
    Departure(
        "How inputs are scaled is not stated: here by mean and deviation of the training data; the published code has "
        "(x - 0.5) / 0.5 (`data.scaling: half`).",
        "not measured for plain SGD",
    ),
    Departure(
        "How a client's batches are made is not stated: here all its samples, in a new order in each epoch; the "
        "published code leaves out the last, smaller batch, and keeps one order (`drop_last`, no `shuffle`)."
    ),
    Departure(
        "Which stage of which clients is scored is not stated: here each client's own model after local training on "
        "its own test samples; the published code pools the samples of all clients, and scores FedAvg and FedProx by "
        "the bare Θ for absent clients."
    ),
)
