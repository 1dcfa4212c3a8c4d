"""Origins of the settings of FedPG's suites. The paper's appendices are absent."""

from pfl_ops.papers.provenance import STANDARD_SCALING, Departure, Sources, assumed, assumed_of, departed, stated

DEFAULT = "not stated: this package's default"
LAUNCHER = "not stated: the authors' launcher's"
CODE = "not stated, and its appendix is absent: the authors' earlier code's"
BASELINES = [
    "local", "fedavg", "fedprox", "apfl", "pfedme", "ditto", "fedamp", "fedfomo", "fedrep", "fedrod", "splitgp",
    "fedmgda_plus",
]  # fmt: skip
OURS = ["fedpg", "s_fedpg"]


SOURCES: Sources = (
    # data and clients
    *stated("Sec. 4, Datasets and Models", {"data.name": ["fashion_mnist", "cifar10", "cifar100"]}),
    *assumed("all published samples: no number of samples is stated", "data.train_size"),
    *stated("Sec. 4: training and test data are already split", {"data.pooled": False}),
    *assumed("by mean and deviation of the training data: not stated", "data.scaling"),
    *stated("Sec. 4, Datasets and Models", {"partition.kind": ["dirichlet", "pat"], "partition.clients": 100}),
    *stated("Sec. 4, Pat-2", {"partition.classes_per_client": 2}),
    *assumed("clients' shares drawn for each class, no cap, 10 samples at least: the paper cites its scheme",
             "partition.per", "partition.cap", "partition.min_size"),
    *assumed("n/N: codes of the cited scheme feed no client beyond it", "partition.cap", when={"partition.cap": True}),
    *assumed("a new partition in each repetition: not stated", "partition.seed"),
    # networks
    *stated("Sec. 4", {"model.name": ["mlp", "nf_resnet18"]}),
    departed("model.name", "the CNN of McMahan et al., by citation", "Sec. 4",
             "the authors' released network: two convolutions and three fully connected layers, which fakelenet5 is "
             "without their dropout", when={"data.name": "cifar10"}),
    *assumed("200, 200: the authors' released network; the paper cites an MLP", "model.hidden"),
    *assumed("the cited NFNet's defaults at ResNet-18's widths: not stated", "model.alpha", "model.width"),
    *assumed("drawn by PyTorch's default rules from the seed: not stated", "model.weights"),
    # methods
    *assumed(DEFAULT, "algorithm.*", when={"algorithm.name": [*BASELINES, *OURS]}),
    *stated("Sec. 4, Baselines", {"algorithm.name": [*BASELINES, *OURS]}),
    *stated("rows of Table 1", {"algorithm.name": "apfl"}, "missing in the list of baselines",
            when={"algorithm.name": "apfl"}),
    *assumed_of("apfl", LAUNCHER, "alpha"),
    *assumed_of("pfedme", LAUNCHER, "lam", "beta"),
    *assumed_of("ditto", LAUNCHER, "lam"),
    *assumed_of("fedamp", LAUNCHER, "lam"),
    *assumed_of("fedamp", f"{DEFAULT}, relative to the distances: with the authors' absolute value all weights vanish",
                "sigma", "unit"),
    *assumed("the paper's reading as far as known: absolute units, with the values of a public code", "algorithm.unit",
             "algorithm.sigma", "algorithm.alpha", "algorithm.lam", when={"algorithm.unit": "absolute"}),
    *assumed_of("fedrep", LAUNCHER, "head_epochs"),
    *assumed_of("fedrep", "not stated: the rest of the 5 epochs", "body_epochs"),
    *assumed_of("fedmgda_plus", LAUNCHER, "eps"),
    *assumed_of("fedmgda_plus", "not stated: the round's η, as in the authors' code", "global_lr"),
    *stated("Sec. 3.2 and 3.3; Sec. 4.3 for M1 to M4",
            {"algorithm.direction": ["common", "mean"], "algorithm.fair": [True, False],
             "algorithm.drift": [True, False], "algorithm.absent": [True, False]}, when={"algorithm.name": OURS}),
    *stated("Sec. 3.3 (γ_i as large as Eq. 8 allows); Sec. 4.1 for 0.3, 0.6, 1",
            {"algorithm.gamma": [0.0, 0.3, 0.6, 1.0]}, when={"algorithm.name": OURS}),
    departed("algorithm.gradient", "the gradient g_i", "Sec. 3.2",
             "the pseudo-gradient of a client's local training: a gradient leaves the stated 5 local epochs without a "
             "meaning", when={"algorithm.name": OURS}),
    departed("algorithm.scale", "g_1, ..., g_m scaled to their average norm", "Sec. 3.2.1",
             "all rows of Q are scaled, as in the authors' code", when={"algorithm.name": OURS}),
    *assumed(CODE, "algorithm.halvings", "algorithm.armijo", when={"algorithm.name": "s_fedpg"}),
    *stated("Sec. 3.4: (1/2)^s η σ", {"algorithm.bound": "paper"}, when={"algorithm.name": "s_fedpg"}),
    departed("algorithm.failing", "the last step tried", "Sec. 3.4",
             "of a search that ends at its bound, the step with the least sum of losses",
             when={"algorithm.name": "s_fedpg", "algorithm.failing": "best"}),
    *stated("Sec. 3.4: η is halved until it is below its bound", {"algorithm.failing": "last"}),
    # training
    *assumed("not stated for this exhibit: Table 1's", "training.rounds", "training.batch_size"),
    *stated("Sec. 4", {"training.local_epochs": 5, "training.optimiser": "sgd", "training.lr_decay": 0.999}),
    departed("training.lr", "the best of 0.01, 0.05, 0.1 for each method", "Sec. 4",
             "the middle one for all; by which data the best is chosen is not stated"),
    *assumed("0: not stated; the authors' launcher has 0", "training.momentum"),
    *assumed("0: not stated", "training.weight_decay"),
    *assumed("cross entropy: not stated", "training.loss"),
    *assumed("single precision: not stated", "training.precision"),
    # participation
    *stated("Sec. 4: randomly selected", {"participation.kind": "uniform"}),
    *assumed("1/C, which follows from Eq. 1, the mean over clients: not stated", "participation.weighting"),
    # scores
    *stated("Sec. 4, Metrics", {"evaluation.split": "test"}),
    *stated("Sec. 4, Metrics: test data of the same amount", {"evaluation.equal_tests": True},
            "each client's test set counts the same, whole, in place of being cut to one size"),
    *stated("Sec. 4.1", {"evaluation.synthetic": (0, 1, 10, 30, 50, 70, 100)}),
    *stated("Sec. 4, Metrics: averages over the clients", {"evaluation.clients": None}),
    *assumed("from 0: random seeds", "seed"),
    *stated("Sec. 4: 5 runs with different random seeds", {"repetitions": 5}),
)  # fmt: skip

TABLE_1: Sources = (
    *SOURCES,
    *stated(
        "Sec. 4.1; captions of Table 1 and Fig. 4",
        {"partition.alpha": 0.1, "training.rounds": 2000, "training.batch_size": 50, "participation.share": 0.1},
    ),
)
"""Of Table 1 and of Figure 4, which shows its cells."""

FIGURE_5: Sources = (
    *SOURCES,
    *stated("Sec. 4.2", {"training.batch_size": 50}),
    *stated("Sec. 4.2; caption", {"participation.share": 1.0}),
    *assumed("of FedPG′ only that it is lower: 0.01", "training.lr",
             when={"algorithm.name": "fedpg", "training.lr": 0.01}),
    *assumed("which of the baselines are drawn is in the lost image: these six", "algorithm.name",
             when={"algorithm.name": BASELINES}),
)  # fmt: skip

TABLE_2: Sources = (*SOURCES, *stated("caption of Table 2", {"participation.share": 0.1}))

OF_ALL: tuple[Departure, ...] = (
    Departure("The paper takes the best learning rate of three for each method: here all methods run the middle one."),
    Departure("The paper cuts test sets to one size: here each client's test set counts the same, whole."),
    Departure("The round of the published numbers is not stated: here the last one."),
    STANDARD_SCALING,
)
OF_SEARCH: tuple[Departure, ...] = (
    Departure(
        "S-FedPG takes, where a search ends at its bound, the largest step that lowers the sum of losses, as the "
        "authors' earlier code; by the letter of Sec. 3.4 it is the last step tried.",
        "the letter is a row of Table 1",
    ),
    Departure(
        "A client that was absent in the last round is scored, of methods with a global model only, with what it would "
        "have trained in that round; the authors' code takes the model of its last own round."
    ),
)
OF_DIRICHLET: tuple[Departure, ...] = (
    Departure(
        "Dir(0.1) is run without a cap on sizes; codes of the cited scheme feed no client beyond n/N samples "
        "(`partition.cap`), and the paper does not say which it has.",
        "Fashion-MNIST, 100 clients, seed 0: 10 to 2,895 samples a client (deviation 558), with the cap 10 to 2,108 "
        "(477); Local and FedPG with the cap are rows of Table 1, `--set partition.cap=true` runs all methods so",
    ),
    Departure(
        "FedAMP mixes by distances relative to their mean; with the authors' absolute σ the weights of other clients "
        "vanish and the method is local training.",
        "Table 1 prints the same numbers for FedAMP and Local on Fashion-MNIST (.947, .300, .295), as vanishing "
        "weights give; with the absolute σ, a row of Table 1, FedAMP's scores at scale smoke are Local's",
    ),
)
TABLE_1_DEPARTURES = (*OF_ALL, *OF_DIRICHLET, *OF_SEARCH)
FIGURE_5_DEPARTURES = (*OF_ALL, *OF_SEARCH)
