"""What an experiment is, whoever runs it and wherever its files lie: canonical JSON, and its SHA-256."""

import hashlib
import json
from collections.abc import Collection
from typing import TYPE_CHECKING

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.data.datasets import DATASETS, load
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.losses import LOSSES
from pfl_ops.fields import Tree
from pfl_ops.models import MODELS, ModelSection
from pfl_ops.models.backbone import weights_file
from pfl_ops.registry import file_digest

if TYPE_CHECKING:
    from pfl_ops.experiment import Experiment

HASH_VERSION = 1
"""Raised whenever the same settings would give another result: then old runs are not taken for new ones."""


def identity(experiment: "Experiment", data_dir: str | None = None) -> Tree:
    """All that decides the result of a run, as plain values.

    Every setting but `repetitions`; for files (a data set's, a partition's, weights, plug-ins) the SHA-256 of what is
    in them, never where they lie. A data set that the package knows keeps its name too: its normalisation goes with it.

    Args:
        experiment: the experiment.
        data_dir: where the data lie; none: as `data.datasets.load` finds them.
    Raises:
        PflOpsError: a file can't be read.
    """
    tree = experiment.resolved
    del tree["repetitions"]
    if experiment.data.name not in DATASETS:
        del tree["data"]["name"]
    tree["data"]["digest"] = load(experiment.data, data_dir=data_dir).digest
    tree["partition"] = experiment.partition.identity()
    tree["model"]["weights"] = weights_digest(experiment.model)
    if experiment.training.loss in LOSSES.builtin:  # as before there were others: the hashes of stored runs stay
        del tree["training"]["loss"]
    plugins = {
        "algorithm": ALGORITHMS.digest(experiment.algorithm.name),
        "partition": PARTITIONS.digest(experiment.partition.kind),
        "model": MODELS.digest(experiment.model.name),
        "loss": LOSSES.digest(experiment.training.loss),
    }
    tree["plugins"] = {kind: digest for kind, digest in plugins.items() if digest is not None}
    return {"version": HASH_VERSION, **tree}


def canonical(identity: Tree, without: Collection[str] = ()) -> str:
    """JSON with sorted keys and no spaces; `without`: top keys that are left out."""
    kept = {key: value for key, value in identity.items() if key not in without}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(identity: Tree, without: Collection[str] = ()) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical(identity, without).encode()).hexdigest()


def weights_digest(section: ModelSection) -> str | None:
    """SHA-256 of the file that a network's parameters come from, its frozen part's included; None: there is none."""
    path = weights_file(section)
    if path is None:
        return None
    try:
        return file_digest(path)
    except OSError as error:
        raise PflOpsError(f"model.weights: can't read {path}: {error.strerror}") from error
