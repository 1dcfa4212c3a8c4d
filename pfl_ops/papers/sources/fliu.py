"""Origins of the settings of FLIU's suites."""

from pfl_ops.papers.provenance import Departure, Sources, assumed, stated

BOTH = ["fedavg", "fliu"]
OF_BOTH = {"algorithm.name": BOTH}
LIBRARY = ["apfl", "fedfomo"]
PFLLIB = "the paper takes the method from PFLlib, and the text does not say with what value: "

SOURCES: Sources = (
    # data and clients
    *stated("captions of Tables I to III and of Figs. 2 to 8", {"data.name": ["mnist", "cifar10"]}),
    *assumed("all published samples: no number of samples is stated", "data.train_size"),
    *assumed("the published split into training and test data: not stated", "data.pooled"),
    *assumed("(x - 0.5) / 0.5: not stated. With mean and deviation 13 of 16 networks of MNIST were dead after 40 steps "
             "of Adam at the stated 0.01, with half 1 of 16; the paper's numbers show no dead networks",
             "data.scaling"),
    *stated("Sec. IV-A, 1) to 5)", {"partition.kind": ["iid", "path", "ls", "qs", "lsqs"]}),
    *stated("Sec. IV-A, 1): all labels represented equally", {"partition.stratified": True}),
    *stated("Sec. IV-A, 2)", {"partition.classes_per_client": 2}),
    *stated("Sec. IV-C; captions of Tables I to III", {"partition.clients": [10, 100]}),
    *assumed("1: the tables do not state it; the captions of Figs. 2 to 4 do for their example with 10 clients",
             "partition.alpha"),
    *assumed("10 samples at least: not stated", "partition.min_size"),
    *assumed("a new partition in each repetition: not stated", "partition.seed"),
    # networks
    *stated("Sec. IV-C: the CNN of McMahan et al.", {"model.name": "cnn"}, when={"data.name": "mnist"}),
    *assumed("the paper adds a convolution before the fully connected layer and gives no widths: 64 channels, 5 x 5, "
             "with pooling, as its neighbour", "model.name", when={"data.name": "cifar10"}),
    *assumed("512 as in McMahan et al., whose network the paper cites: not stated", "model.hidden"),
    *assumed("drawn by PyTorch's default rules from the seed, one Θ for all clients: not stated", "model.weights"),
    # methods
    *stated("Sec. IV-C and Sec. V", {"algorithm.name": ["local", "fedavg", "fliu", "apfl", "fedfomo"]}),
    *stated("Sec. IV-C; Eq. 4 for the adaptive one", {"algorithm.gamma.kind": ["fixed", "adaptive"]}),
    *stated("Sec. IV-C", {"algorithm.gamma.value": [0.1, 0.25, 0.5, 0.75, 0.9]}),
    *assumed(f"{PFLLIB}this package's default", "algorithm.*", when={"algorithm.name": LIBRARY}),
    *stated("Sec. IV-C", {"algorithm.name": LIBRARY}),
    *assumed(f"{PFLLIB}the method's own paper's equation (step); PFLlib mixes at a round's end (round)",
             "algorithm.mixing"),
    *assumed("PFLlib's, from which Sec. IV-C takes the method: mixed at a round's end, α moved at every step",
             "algorithm.mixing", "algorithm.every", when={"algorithm.mixing": "round"}),
    *assumed("PFLlib's, from which Sec. IV-C takes the method: a client that no candidate serves keeps its trained "
             "model; candidates are those with the largest affinity, never random ones; the server sends each client "
             "all M of them, its own model too", "algorithm.fallback", "algorithm.explore", "algorithm.own",
             when={"algorithm.fallback": "trained"}),
    *stated("Sec. IV-C: 5 downloaded models", {"algorithm.candidates": 5},
            "counted with the client's own model among them, as in PFLlib: whether it counts is not stated"),
    # training
    *stated("Sec. IV-C", {"training.local_epochs": 5, "training.batch_size": 50}),
    *stated("Sec. IV-C; captions of Tables I to III", {"training.rounds": 100}),
    *stated("Algorithm 1", {"training.optimiser": "adam"}, "its state is fresh in each round: whether it persists is "
            "not stated", when={"algorithm.name": "fliu"}),
    *assumed("as FLIU's (Algorithm 1): not stated", "training.optimiser", when={"algorithm.name": ["local", "fedavg"]}),
    *assumed("SGD, as in McMahan et al.: not stated. Under Adam, as FLIU, at the stated 0.01 FedAvg's network gives "
             "one answer to all inputs on PATH: in 3 of 3 seeds at small, in 5 of 5 at medium. The rule for optimisers "
             "is in docs/reproduced.md", "training.optimiser",
             when={"algorithm.name": "fedavg", "training.optimiser": "sgd"}),
    *assumed("SGD: not stated; one step of Adam at 0.1 moves every weight by 0.1", "training.optimiser",
             when={"algorithm.name": LIBRARY}),
    *stated("Sec. IV-C", {"training.lr": 0.01}, when={**OF_BOTH, "data.name": "mnist"}),
    *stated("Sec. IV-C", {"training.lr": 0.001}, when={**OF_BOTH, "data.name": "cifar10"}),
    *assumed("of CLT not stated: FedAvg's", "training.lr", when={"algorithm.name": "local"}),
    *stated("Sec. IV-C", {"training.lr": 0.1}, when={"algorithm.name": "apfl"}),
    *stated("Sec. IV-C", {"training.lr": 0.01}, when={"algorithm.name": "fedfomo", "data.name": "mnist"}),
    *stated("Sec. IV-C", {"training.lr": 0.1}, when={"algorithm.name": "fedfomo", "data.name": "cifar10"}),
    *stated("Sec. IV-C", {"training.lr_decay": 0.99}, "after each round: the period is not stated", when=OF_BOTH),
    *assumed("of CLT not stated: FedAvg's", "training.lr_decay", when={"algorithm.name": "local"}),
    *assumed("of APFL not stated: FedAvg's 0.99", "training.lr_decay", when={"algorithm.name": "apfl"}),
    *stated("Sec. IV-C: without decay", {"training.lr_decay": 1.0}, when={"algorithm.name": "fedfomo"}),
    *assumed("0: not stated", "training.momentum", "training.weight_decay"),
    *assumed("cross entropy: Eq. 1 has an arbitrary loss", "training.loss"),
    *assumed("single precision: not stated", "training.precision"),
    # participation
    *stated("Sec. III-A: a participation rate of 1", {"participation.share": 1.0}),
    *assumed("n_k / n in FedAvg's mean, as in Eq. 1 and in McMahan et al.; FLIU's own is 1/K (Algorithm 1). They "
             "differ in QS and LSQS", "participation.weighting"),
    # scores
    *stated("Sec. IV-B: the clients' test sets", {"evaluation.split": "test"},
            "how they are cut is not stated: the official test set by the clients' training proportions"),
    *stated("captions of Tables I to III: averages over all clients", {"evaluation.clients": None}),
    *assumed("0, 1, 2: not stated", "seed"),
    *stated("Sec. IV-C; captions of Tables I to III", {"repetitions": 3}),
)  # fmt: skip

ALLOCATIONS: Sources = (
    *SOURCES,
    *stated("caption", {"partition.alpha": 1.0, "partition.clients": 10, "data.name": "cifar10"}),
    *assumed("one drawing, as the figure shows one example: not stated", "repetitions"),
)
"""Of Figures 2 to 4, which train nothing."""

CURVES: Sources = (*SOURCES, *assumed("100, as in Table I: not stated of this figure", "partition.clients"))
"""Of Figures 5 to 8, whose captions have the rounds and not K, which is 10 or 100 (Sec. IV-C)."""

DEPARTURES: tuple[Departure, ...] = (
    Departure(
        "FedAvg's optimiser is not stated. On MNIST it is SGD here (FLIU's is Adam, as stated), for under Adam at the "
        "stated 0.01 FedAvg's network gives one answer to all inputs; on CIFAR-10, at 0.001, it is Adam as FLIU's.",
        "on MNIST a difference between FedAvg and FLIU may be the optimiser's: `--set training.optimiser=sgd` runs "
        "both under SGD",
    ),
    Departure(
        "How inputs are scaled is not stated: here (x - 0.5) / 0.5 (`data.scaling: half`).",
        "of 16 CNNs of McMahan et al. under Adam at 0.01, one was dead after 40 steps; with mean and deviation 13",
    ),
    Departure(
        "The paper does not say which round its numbers are of: the last one is reported here, and L2 of a round is "
        "scored before its averaging (Algorithm 1's order L2, G, L1)."
    ),
    Departure(
        "Curves of Acc(G) are of 1,000 test samples, drawn by label; the last round's numbers are of all. To score "
        "every model on 10,000 samples in each round takes longer than to train an MLP.",
        "a standard error of at most 1.6 points in Fig. 6, and in what is claimed of its round 1",
    ),
    Departure(
        "The paper does not say how test data are given to clients: here the official test set is cut by the clients' "
        "training proportions."
    ),
)
OF_LIBRARY: tuple[Departure, ...] = (
    Departure(
        "The paper's APFL and FedFomo are PFLlib's (Sec. IV-C); the rows APFL and FedFomo run the methods' own papers' "
        "equations, and claims are judged on them.",
        "PFLlib's readings are rows of their own, as far as options of the methods reproduce them. Its FedFomo sends a "
        "client five models a round, the own one among them, where the row FedFomo sends four. In PFLlib the own model "
        "is a candidate only while its affinity is among the five largest: here always",
    ),
)
"""Of the suites with APFL and FedFomo."""
