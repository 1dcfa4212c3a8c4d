"""Origins of the settings of FedAvg2Rep's suites."""

from pfl_ops.papers.provenance import STANDARD_SCALING, Departure, Sources, assumed, departed, stated

IMAGES, LINES = {"data.name": "cifar100"}, {"data.name": "shakespeare"}
LEAF_IID = {**LINES, "data.pooled": True}
FEDERATED = {"algorithm.name": ["fedavg", "fedavg2rep"]}
CENTRALIZED = {"algorithm.name": "centralized"}

SOURCES: Sources = (
    # data and clients
    *stated("Sec. 3.1", {"data.name": ["cifar100", "shakespeare"]}),
    *stated("Sec. 4.3: 500 images a client", {"data.train_size": None}, when=IMAGES),
    departed("data.train_size", "40,000 of the 50,000 images", "Sec. 4.1",
             "all of them: the 10,000 that the paper holds out are not among the published splits",
             when={**IMAGES, **CENTRALIZED}),
    *assumed("all records of the chosen roles", "data.train_size", when=LINES),
    *stated("Sec. 3.1: 500 training and 100 test images a class", {"data.pooled": False}, when=IMAGES),
    *assumed("LEAF's split into training and test records: not stated", "data.pooled", when=LINES),
    *assumed("by mean and deviation of the training data: not stated", "data.scaling", when=IMAGES),
    *stated("Sec. 3.1: 100 of 1129 roles", {"data.roles": 100},
            "which is not stated: drawn among those with enough records", when=LINES),
    *stated("Sec. 3.1, 4.5", {"data.records": 2000}, when=LINES),
    *stated("Sec. 4.3 and 4.5", {"partition.kind": ["iid", "shards"], "partition.clients": 100}),
    departed("partition.kind", "LEAF's own IID split", "Sec. 4.3",
             "the training records of the chosen roles are dealt out anew; LEAF's sampling is a row of its own",
             when={**LINES, "partition.kind": "iid", "data.pooled": False}),
    *stated("Sec. 4.5: each role a client, as LEAF has it", {"partition.kind": "natural"}, when=LINES),
    *stated("Sec. 4.3: shuffled and split into subsets of 500", {"partition.stratified": False}, when=IMAGES),
    *assumed("each next character is dealt out evenly: LEAF's IID split does not", "partition.stratified", when=LINES),
    *stated("Sec. 4.3: LEAF's IID split", {"partition.kind": "iid", "partition.stratified": False, "data.pooled": True},
            "LEAF shuffles the records of all users, deals them to new users and splits each new user's records",
            when=LEAF_IID),
    *assumed("a fifth, which leaves a client the stated 2,000 training records: not stated", "data.test_share",
             when=LEAF_IID),
    *stated("Sec. 4.5; rows of Table 3", {"partition.classes_per_client": [1, 5, 10, 50]}),
    *assumed("one sample: not stated", "partition.min_size"),
    *assumed("a new partition in each repetition: not stated", "partition.seed"),
    # networks
    *stated("Sec. 3.2.1", {"model.name": "fakelenet5"},
            "activations and padding are not stated: ReLU and none", when=IMAGES),
    *stated("Sec. 3.2.2", {"model.name": "char_lstm", "model.embedding": 8, "model.hidden": 256}, when=LINES),
    *stated("Sec. 4.2", {"model.characters": 80}),
    *assumed("drawn by PyTorch's default rules from the seed: not stated", "model.weights"),
    # methods
    *stated("Sec. 2.1 to 2.3, 1.1", {"algorithm.name": ["fedavg", "fedavg2rep", "centralized"]}),
    *stated("Sec. 3.2.1, 3.2.2", {"algorithm.schedule": "cosine"}, "that it ends with the last epoch is not stated"),
    # training
    *stated("Sec. 3.2.1 and 3.2.2, of the centralized runs",
            {"training.batch_size": 64, "training.lr": 0.01, "training.momentum": 0.9, "training.weight_decay": 4e-4},
            when=CENTRALIZED),
    *assumed("SGD, which has the stated momentum: not stated", "training.optimiser", when=CENTRALIZED),
    *stated("Sec. 4.1", {"training.rounds": 140}, when={**IMAGES, **CENTRALIZED}),
    *assumed("20 epochs: not stated", "training.rounds", when={**LINES, **CENTRALIZED}),
    *assumed("one: the scheduler moves with each round", "training.local_epochs", when=CENTRALIZED),
    *stated("Sec. 2.1, 2.2: stochastic gradient updates", {"training.optimiser": "sgd"}, when=FEDERATED),
    *assumed("64, that of the centralized runs: not stated for federated ones", "training.batch_size", when=FEDERATED),
    *stated("Sec. 3.2.1", {"training.lr": 0.1, "training.momentum": 0.0, "training.weight_decay": 4e-3},
            when={**IMAGES, **FEDERATED}),
    *stated("Sec. 3.2.2", {"training.lr": 1.0}, when={**LINES, **FEDERATED}),
    *assumed("0, CIFAR-100's: not stated for Shakespeare", "training.momentum", when={**LINES, **FEDERATED}),
    *assumed("none: not stated for Shakespeare. With CIFAR-100's 4e-3 and η 1 a CharLSTM of 64 units stayed at the "
             "most frequent character (16.3 %) for 100 rounds, which it left without (20.5 % by round 75)",
             "training.weight_decay", when={**LINES, **FEDERATED}),
    *assumed("none: not stated", "training.lr_decay"),
    *assumed("cross entropy: not stated", "training.loss"),
    *assumed("single precision: not stated", "training.precision"),
    # participation
    *stated("Sec. 4.3, 4.5", {"participation.share": 0.1}, when=FEDERATED),
    *assumed("centralized training has no clients", "participation.share", when=CENTRALIZED),
    *stated("Sec. 1.2, 4.6.1: uniform, random", {"participation.kind": "uniform"}),
    *stated("Eq. 2", {"participation.weighting": "uniform"}),
    # scores
    *stated("Sec. 1.2: a global test set", {"evaluation.split": "test"}, "last round: the best one may be meant"),
    *assumed("the score needs G alone: clients' own models are scored for ten of them", "evaluation.clients"),
    *assumed("from 0: not stated", "seed"),
    *assumed("5: not stated; a paired test over seeds needs several", "repetitions"),
)  # fmt: skip

ROUNDS_TABLES: Sources = (
    *stated("Sec. 4.3, 4.5", {"training.rounds": [2000, 1000, 500]}, when={**IMAGES, "algorithm.name": "fedavg"}),
    *stated("Sec. 4.3, 4.5", {"training.rounds": [200, 100, 50]}, when={**LINES, "algorithm.name": "fedavg"}),
    *stated("Sec. 4.3, 4.5", {"training.local_steps": [4, 8, 16]}),
)
TABLES: Sources = (*SOURCES, *ROUNDS_TABLES)
"""Of Tables 2 and 3 and of Figure 6, whose cell is Table 3's."""

TABLE_4: Sources = (
    *TABLES,
    *stated("Sec. 4.6.1: R scaled as for FedAvg", {"training.rounds": [2000, 1000, 500]},
            when={"algorithm.name": "fedavg2rep", "algorithm.warm_up": 0}),
    *stated("Sec. 4.6.2: 1500 (4 / J)", {"training.rounds": [1500, 750, 375]},
            when={"algorithm.name": "fedavg2rep", "model.weights": "tiny_imagenet.safetensors"}),
    *stated("Sec. 4.6.2: 500 and 1500 (4 / J)", {"training.rounds": [2000, 1250, 875]},
            when={"algorithm.name": "fedavg2rep", "algorithm.warm_up": 500}),
    *stated("Algorithm 3; Sec. 4.6.2",
            {"algorithm.warm_up": [0, 500], "algorithm.warm_up_steps": [None, 4], "algorithm.head": "averaged"}),
    *stated("Sec. 4.6.2", {"model.weights": "tiny_imagenet.safetensors"},
            "trained on Tiny ImageNet; a classifier of another width is drawn anew"),
)  # fmt: skip
"""Of Table 4 and of Figure 7, which shows its cells."""

FIGURE_1: Sources = (
    *TABLES,
    *assumed("the image is lost, and no other schedule is named: a constant rate", "algorithm.schedule",
             when={"algorithm.schedule": "constant"}),
    *assumed("the image is lost, and no other schedule is named: a factor of 0.97 an epoch", "training.lr_decay",
             when={"training.lr_decay": 0.97}),
)  # fmt: skip

BASELINE = "as the baseline of Sec. 4.3: not stated of this figure"

FIGURE_2: Sources = (
    *SOURCES,
    *assumed(BASELINE, "training.rounds", "training.local_steps", "participation.share"),
    *assumed("the lower rates are in the lost image: 0.1 and 0.01, of the centralized grid", "training.lr",
             when={"training.lr": [0.1, 0.01]}),
)  # fmt: skip

PARTICIPATIONS: Sources = (
    *SOURCES,
    *assumed(BASELINE, "training.rounds", "training.local_steps", "participation.share"),
    *assumed(BASELINE, "partition.clients", when=IMAGES),
    *stated("Sec. 4.4", {"participation.kind": ["dirichlet", "uniform"]}),
    *stated("Sec. 4.4", {"participation.gamma": 0.1}),
    *assumed("only 0.1 and the limit of random selection are named: 0.5, 1 and 10", "participation.gamma",
             when={"participation.gamma": [0.5, 1.0, 10.0]}),
)  # fmt: skip
"""Of Figures 4 and 5."""

OF_IMAGES: tuple[Departure, ...] = (
    STANDARD_SCALING,
    Departure("Whether federated training augments images is not stated: here it does not."),
)
OF_LINES: tuple[Departure, ...] = (
    Departure(
        "The paper's IID clients of Shakespeare are LEAF's own IID split. In the cells \"Shakespeare, IID\" the "
        "training records of the chosen roles are joined, each next character is dealt out evenly, and later text of "
        "the roles is for testing.",
        "LEAF's sampling is a row of Table 2 (\"Shakespeare, LEAF's IID\"): all records are shuffled before they are "
        "split, so that of 50,000 test records 96 % have a training record one character away (seeds 0 to 2)",
    ),
)
OF_CENTRALIZED: tuple[Departure, ...] = (
    Departure(
        "Centralized training has standard augmentation and 40,000 of the 50,000 images (Sec. 4.1): here no "
        "augmentation and all images."
    ),
)
OF_PRETRAINED: tuple[Departure, ...] = (
    Departure(
        "Pre-trained weights of Tiny ImageNet are not among the data here: the row runs where the working folder has "
        "the file, and starts from fresh weights at scale smoke."
    ),
)
ROUND: tuple[Departure, ...] = (
    Departure("Whether the last or the best round is published is not stated: here the last one."),
)
