"""Pinned results: small runs in float64 through the front door, of each method and of each part of the engine.

    python tests/contract/pinned.py

writes what the code gives today into pinned_results.csv, and prints the digest that a new entry of
`pfl_ops.results_version.VERSIONS` needs, or its newest entry where only rows were added. Do so only where results are
meant to change, or for a new method.
"""

import csv
import hashlib
import io
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config.experiment import Experiment
from pfl_ops.data.partition import PARTITIONS
from pfl_ops.federation.settings import Execution

TABLE = Path(__file__).with_name("pinned_results.csv")
HERE = Execution(device="cpu", way="loop", workers=1, threads=1)
SMALL: dict[str, Any] = {
    "data.train_size": 240, "partition.clients": 5, "training.rounds": 2, "training.batch_size": 16,
    "training.precision": "float64", "evaluation.global_every": 1,
    # whatever a method recommends
    "training.optimiser": "sgd", "training.lr": 0.05, "training.lr_decay": 1.0, "training.momentum": 0.0,
    "training.local_epochs": 1, "training.local_steps": None, "participation.weighting": "samples",
}  # fmt: skip
ENGINE: dict[str, dict[str, Any]] = {
    "momentum and decay": {"training.momentum": 0.9, "training.weight_decay": 0.01, "training.lr_decay": 0.9},
    "adam": {"training.optimiser": "adam", "training.lr": 0.001},
    "local steps": {"training.local_epochs": None, "training.local_steps": 5},
    "two epochs": {"training.local_epochs": 2},
    "full batches": {"training.batch_size": None},
    "uniform weights": {"participation.weighting": "uniform"},
    "two of five clients": {"participation.share": 0.4},
    "dirichlet participation": {"participation.kind": "dirichlet", "participation.share": 0.5},
    "stragglers": {"participation.kind": "stragglers", "participation.share": 0.5},
    "validation": {"evaluation.split": "validation"},
    "pooled data": {"data.pooled": True},
    "three clients scored": {"evaluation.clients": 3, "evaluation.subset": 30},
    "synthetic views": {"evaluation.synthetic": (20,), "evaluation.equal_tests": True, "evaluation.eps": (0.3, 0.6)},
    "another seed": {"seed": 1},
    "linear": {"algorithm.name": "fedavg", "model.name": "linear"},
    "mlp": {"model.name": "mlp"},
} | {
    f"partition {kind}": {"partition.kind": kind} for kind in PARTITIONS.builtin if kind not in ("natural", "file")
}  # fmt: skip

ADDED = ("/worst_min10", "/se")
"""Ends of keys that came after the table: they change no number that was there."""


def cases() -> dict[str, Experiment]:
    """Every pinned run by name: one of each method, and (nearly always) FedRep under each setting of `ENGINE`."""
    found = {}
    for name in ALGORITHMS.builtin:
        counted = {"training.local_epochs": None, "training.local_steps": 5}
        needs = counted if "training.local_steps" in ALGORITHMS.get(name).requires else {}
        found[name] = Experiment.of(name, dataset="digits").override(SMALL | needs)
    base = Experiment.of("fedrep", dataset="digits").override(SMALL)
    return found | {name: base.override(settings) for name, settings in ENGINE.items()}


def results(experiment: Experiment) -> dict[str, float]:
    """The pinned numbers of a run: its last loss, its clients' models and all its scores, a number each."""
    with closing(experiment.build(execution=HERE)) as simulation:
        for _ in simulation.run():
            pass
        personal, central = simulation.personal_models(), simulation.global_model()
        last, scores = simulation.records[-1].metrics, simulation.final
    models = personal.params if personal else torch.cat([value.flatten() for value in (central or {}).values()])
    return {
        "loss": last.get("train/loss", 0.0),
        "models": models.abs().mean().item(),
        "scores": math.fsum(value for key, value in scores.items() if math.isfinite(value) and not key.endswith(ADDED)),
    }


def read() -> dict[tuple[str, str], float]:
    """The table: (run, quantity) -> value."""
    with TABLE.open(newline="") as file:
        return {(row["run"], row["quantity"]): float(row["value"]) for row in csv.DictReader(file)}


def digest() -> str:
    """SHA-256 of the table."""
    return hashlib.sha256(TABLE.read_bytes()).hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["run", "quantity", "value"])
    for name, experiment in cases().items():
        rows.writerows([name, quantity, f"{value:.13g}"] for quantity, value in results(experiment).items())
    TABLE.write_text(text.getvalue())
    print(digest())


if __name__ == "__main__":
    main()
