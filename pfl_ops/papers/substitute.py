"""Scale `smoke`: an experiment cut to seconds, or moved to a substitute data set.

Neither says anything about a paper's numbers; a report marks both.
"""

from typing import Any

from pfl_ops.config.experiment import Experiment

SAMPLES, CLIENTS, ROUNDS, BATCH, STEPS, SUBSET = 400, 8, 2, 20, 2, 100
DIGITS = 10  # classes of the data set that stands in for any other


def cut(experiment: Experiment) -> Experiment:
    """The same experiment with very few samples, clients, rounds and steps; what is small already stays.

    A cohort has at least two clients where there are two, so that something is averaged.
    """
    most = {
        "data.train_size": max(SAMPLES, _classes(experiment) * 5),
        "partition.clients": CLIENTS,
        "training.rounds": ROUNDS,
        "training.local_epochs": 1,
        "training.local_steps": STEPS,
        "training.batch_size": BATCH,
        "evaluation.subset": SUBSET,
        "evaluation.clients": CLIENTS,
        "evaluation.global_every": ROUNDS,
        "data.roles": CLIENTS,
        "data.records": SAMPLES // CLIENTS,
    }
    there = experiment.flat
    changes: dict[str, Any] = {path: least for path, least in most.items() if _above(path, there, least)}
    clients = changes.get("partition.clients", there.get("partition.clients")) or CLIENTS
    if there["participation.share"] * clients < 2 <= clients:
        changes["participation.share"] = 2 / clients
    return experiment.override({**changes, "repetitions": 1})


def moved(experiment: Experiment, data: str) -> Experiment:
    """The same on another data set; on digits with the network for digits, natural clients become LSQS ones, and no
    client has more classes than there are."""
    changes: dict[str, Any] = {"data.name": data}
    if data == "digits":
        changes["model.name"] = None
        changes |= {path: None for path in ("data.roles", "data.records") if experiment.get(path) is not None}
        if experiment.partition.kind == "natural":
            changes |= {"partition.kind": "lsqs", "partition.clients": CLIENTS}
        if (experiment.get("partition.classes_per_client") or 0) > DIGITS:
            changes["partition.classes_per_client"] = DIGITS
    return experiment.override(changes)


def _above(path: str, there: dict[str, Any], most: int) -> bool:
    """True if the value at `path` is more than `most`; where none means all, none is more."""
    if path not in there:
        return False
    value = there[path]
    if value is None:
        return path in ("data.train_size", "training.batch_size", "evaluation.subset")
    return isinstance(value, str) or value > most


def _classes(experiment: Experiment) -> int:
    from pfl_ops.data.datasets import DATASETS

    info = DATASETS.get(experiment.data.name)
    return info.n_classes if info else 10
