"""Origins of the settings of McMahan et al.'s Table 1."""

from pfl_ops.papers.provenance import Departure, Sources, assumed, stated

SOURCES: Sources = (
    *stated("Sec. 3; Table 1", {"data.name": "mnist", "partition.clients": 100, "data.train_size": None}),
    *stated("Sec. 3: the published test set", {"data.pooled": False, "evaluation.split": "test"}),
    *assumed("x / 255: not stated", "data.scaling"),
    *stated("Sec. 3: shuffled, 600 examples a client", {"partition.kind": "iid", "partition.stratified": False}),
    *stated("Sec. 3: 200 shards of 300, two a client",
            {"partition.kind": "sorted_shards", "partition.shards_per_client": 2}),
    *assumed("a new partition in each repetition: not stated", "partition.seed"),
    *stated("Sec. 3: two 5 x 5 convolutions (32, 64), 2 x 2 max-pooling, 512 units",
            {"model.name": "cnn", "model.hidden": 512}),
    *assumed("drawn by PyTorch's default rules from the seed: not stated", "model.weights"),
    *stated("Algorithm 1", {"algorithm.name": "fedavg"}),
    *stated("Table 1", {"training.local_epochs": 5, "training.batch_size": 10, "participation.share": 0.1}),
    *assumed("as many as twice the published number and more: until the target is reached", "training.rounds"),
    *stated("Algorithm 1: w - η ∇l", {"training.optimiser": "sgd", "training.momentum": 0.0,
                                      "training.weight_decay": 0.0}),
    *assumed("0.1, until the rule has chosen: the paper has the best of a grid for each cell, and prints none",
             "training.lr"),
    *assumed("none: not stated for MNIST", "training.lr_decay"),
    *assumed("cross entropy: not stated", "training.loss"),
    *assumed("single precision: not stated", "training.precision"),
    *stated("Algorithm 1", {"participation.kind": "uniform", "participation.weighting": "samples"}),
    *assumed("Θ is scored, not models of clients", "evaluation.clients"),
    *assumed("from 0: not stated", "seed"),
    *assumed("5: the paper has one run a cell, as far as it says", "repetitions"),
)  # fmt: skip

DEPARTURES: tuple[Departure, ...] = (
    Departure(
        "The paper takes for each cell the learning rate of a grid that is best on test data: here 0.1 for both. Rule "
        "mcmahan chooses one for each cell on validation data (`--choose`), and has not been run.",
        of_choice=True,
    ),
    Departure(
        "The paper makes each curve monotone (the best accuracy so far) and interpolates between its rounds: here "
        "every round is scored, and the first one with 99 % or more counts."
    ),
    Departure(
        "The paper has IID clients of 600 images by a shuffle, and says nothing of the order within a class of its "
        "sorted shards: here it is random."
    ),
)
