"""Origins of the settings of PFLlib's leaderboard."""

from pfl_ops.papers.provenance import Departure, Sources, assumed, stated

BOARD = "leaderboard"
DEFAULT = "PFLlib's default; what the leaderboard ran with is not stated"

SOURCES: Sources = (
    *stated(BOARD, {"data.name": "fashion_mnist"}),
    *assumed("all published samples: not stated", "data.train_size"),
    *stated(BOARD, {"data.pooled": True, "data.test_share": 0.25}, "75 % of each client's data are for training"),
    *assumed("(x - 0.5) / 0.5, as PFLlib's loaders: not stated of the leaderboard", "data.scaling"),
    *stated(BOARD, {"partition.clients": 20, "partition.classes_per_client": 2, "partition.alpha": 0.1}),
    *stated(BOARD, {"partition.kind": "pat"}, "a class is shared unevenly, as by PFLlib's generator"),
    *stated(BOARD, {"partition.kind": "dirichlet"}),
    *assumed("as PFLlib's generator: by class, none for a client with n/N samples, 40 samples at least",
             "partition.per", "partition.cap", "partition.min_size"),
    *assumed("a new partition in each repetition: not stated", "partition.seed"),
    *stated(BOARD, {"model.name": "cnn6"}, "4-layer CNN"),
    *assumed("512, PFLlib's", "model.hidden"),
    *assumed("drawn by PyTorch's default rules from the seed: not stated", "model.weights"),
    *assumed("this package's default, mostly the method's own paper's: not stated", "algorithm.*"),
    *assumed(DEFAULT, "algorithm.inner_steps", "algorithm.inner_lr", "algorithm.personal_epochs",
             "algorithm.candidates", "algorithm.head_epochs", "algorithm.body_epochs", "algorithm.fine_epochs"),
    *assumed(DEFAULT, "algorithm.layers", "algorithm.share", "algorithm.weight_lr", when={"algorithm.name": "fedala"}),
    *assumed("this package's default: with PFLlib's α 1 and σ 1 in absolute units, models near each other have "
             "weights that sum to more than 1, which is refused here", "algorithm.alpha", "algorithm.sigma",
             "algorithm.unit", when={"algorithm.name": "fedamp"}),
    *assumed(f"{DEFAULT}; mixed at a round's end, α moved at every step", "algorithm.alpha", "algorithm.mixing",
             "algorithm.every", when={"algorithm.name": "apfl"}),
    *assumed("PFLlib's: candidates of largest affinity, never random; its server sends all of them, the own one too; a "
             "client that none serves keeps its trained model", "algorithm.explore", "algorithm.fallback",
             "algorithm.own", when={"algorithm.name": "fedfomo"}),
    *assumed("PFLlib's: clients weigh alike in a prototype", "algorithm.average", when={"algorithm.name": "fedproto"}),
    *assumed(DEFAULT, "algorithm.lam", when={"algorithm.name": "fedproto"}),
    *stated(BOARD, {"algorithm.name": ["fedavg", "fedprox", "pfedme", "ditto", "apfl", "fedfomo", "fedamp", "fedala",
                                       "fedper", "fedrep", "fedrod", "fedbabu", "fedproto"]}),
    *stated(BOARD, {"training.rounds": 2000, "training.local_epochs": 1, "training.batch_size": 10,
                    "training.lr": 0.005}),
    *assumed("plain SGD, PFLlib's: not stated", "training.optimiser", "training.momentum", "training.weight_decay"),
    *assumed("none, PFLlib's default: not stated", "training.lr_decay"),
    *assumed("cross entropy: not stated", "training.loss"),
    *assumed("single precision: not stated", "training.precision"),
    *stated(BOARD, {"participation.share": 1.0}),
    *assumed("n_k / n, PFLlib's", "participation.weighting"),
    *stated(BOARD, {"evaluation.split": "test"}),
    *assumed("all clients: not stated otherwise", "evaluation.clients"),
    *assumed("from 0: not stated", "seed"),
    *assumed("3: not stated", "repetitions"),
)  # fmt: skip

DEPARTURES: tuple[Departure, ...] = (
    Departure(
        "The leaderboard prints the round that is best on test data, and so a maximum over 2,000 looks: the column of "
        "the last round beside it is ours."
    ),
    Departure(
        "PFLlib divides the number of right answers of all clients by that of all test samples: here the mean over "
        "clients of their accuracies.",
        "not measured; sizes differ by up to tens of times in both environments",
    ),
    Departure(
        "PFLlib trains on full batches alone (drop_last): here the last, smaller batch of an epoch is a step, too.",
        "not measured; up to 9 samples of a client in an epoch",
    ),
    Departure(
        "At which stage of a round PFLlib scores a method differs between its methods, and is not stated: here at L1, "
        "a client's own model before its training, of FedBABU at L2, in the last round only."
    ),
    Departure(
        "What hyper-parameters the leaderboard ran with is not stated: PFLlib's defaults where they can have been it, "
        "else this package's. Its defaults of FedProx's μ and Ditto's λ are 0, and of pFedMe's β 0, with which these "
        "methods do nothing. pFedMe's λ is 15 here, its default there is 1."
    ),
)
