"""The number n of pooled samples on which the models of the last round are scored, where an experiment leaves it open.

    n = max(1000, 3/10 · T · C · n_train / (2 · K)),    all samples if there are not more

T rounds of a share C of the clients see T · C · n_train samples if each takes one pass over its data, and training on a
sample costs three times its answer. K clients are scored in two stages, L1 and L2; K is 200 where the partition states
no number of clients. So the global view of the last round costs about a tenth of such a training. Epochs and local
steps do not count: methods that differ in them are scored on the same samples. Nothing is timed: the number is the same
on every machine, and part of the identity.
"""

from typing import TYPE_CHECKING

from pfl_ops.federation.settings import ALL_UP_TO

if TYPE_CHECKING:
    from pfl_ops.config.experiment import Experiment
    from pfl_ops.data.datasets import Dataset

LEAST_SAMPLES = 1000
SHARE = 0.1  # of the operations of training
PASSES = 3  # forward and backward, in forward passes
STAGES = 2  # with models of their own for each client: L1 and L2


def final_samples(experiment: "Experiment", dataset: "Dataset") -> int | None:
    """Return the number of pooled samples behind the global view of the last round; None: all.

    Args:
        experiment: its `evaluation.final` is a number, "all" or "auto".
        dataset: its own.

    >>> from pfl_ops.data.datasets import load
    >>> from pfl_ops.config.experiment import Experiment
    >>> few = Experiment.of("fedavg", dataset="digits", rounds=20)  # 359 samples for testing
    >>> print(final_samples(few, load(few.data)))
    None
    """
    wanted, e = experiment.evaluation.final, experiment.evaluation
    n_train, n_test = dataset.sizes
    if dataset.pooled:
        n_train, n_test = round(n_train * (1 - experiment.data.test_share)), round(n_train * experiment.data.test_share)
    if e.split == "validation":
        n_train, n_test = round(n_train * (1 - e.validation_share)), round(n_train * e.validation_share)
    if wanted == "auto":
        wanted = "all" if e.synthetic else _affordable(experiment, n_train)
    return None if wanted == "all" or wanted >= n_test else wanted


def _affordable(experiment: "Experiment", n_train: int) -> int:
    known = getattr(experiment.partition, "clients", None)
    scored = experiment.evaluation.clients or min(known or ALL_UP_TO, ALL_UP_TO)
    trained = experiment.training.rounds * experiment.participation.share * n_train
    return max(LEAST_SAMPLES, round(SHARE * PASSES * trained / (STAGES * scored)))
