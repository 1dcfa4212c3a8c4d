"""Tracked runs without a simulation: as the store would give them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from pfl_ops import tag_names
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.tracking import RunInfo
from pfl_ops.tracking.target.run_info import PARENT

Make = Callable[..., RunInfo]


@dataclass
class Shelf:
    """The parts of a store that `select` and `compare` need; `found` is what MLflow's search finds by any filter."""

    kept: Sequence[RunInfo]
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    found: Collection[str] = ()
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    target: Any = field(default_factory=lambda: SimpleNamespace(label="a shelf"))
    is_open = True

    def runs(self, where: str | None = None) -> list[RunInfo]:
        return [run for run in self.kept if where is None or run.run_id in self.found]

    def history(self, run_id: str, keys: Collection[str]) -> pd.DataFrame:
        self.asked.append((run_id, tuple(sorted(keys))))
        there = self.curves.get(run_id, {})
        return pd.DataFrame({key: pd.Series(there.get(key, []), dtype=float) for key in sorted(keys)})

    def close(self) -> None:
        """Stay open for the next comparison."""

    def download(self, run: RunInfo, path: str, to: str) -> None:
        raise PflOpsError(f"run {run.run_id} has no artifact '{path}'")


@pytest.fixture
def shelf() -> type[Shelf]:
    return Shelf


@pytest.fixture
def made() -> Make:
    """A finished run of a method with a seed; `acc` is its accuracy on own data, half as much on pooled data.

    All are trained alike, whatever their method recommends.
    """
    clock = iter(range(1_000_000))

    def make(
        method: str = "fliu",
        seed: int = 0,
        acc: float | None = 0.5,
        *,
        name: str = "",
        group: str = "",
        experiment: str = "digits-lsqs",
        parent: str | None = None,
        trial: int | None = None,
        status: str = "FINISHED",
        tags: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> RunInfo:
        number = next(clock)
        given = {"evaluation.split": "validation"} if trial is not None else {}
        alike = {"training.optimiser": "sgd", "training.lr": 0.05}
        described = Experiment.of(method, seed=seed).override({**alike, **given, **settings})
        group = group or f"{method}{sorted(given.items())}{sorted(settings.items())}"
        digest = f"{abs(hash((group, seed))):064x}"
        split = "val" if trial is not None else "test"
        prefix = "" if trial is not None else "final/"
        metrics = {} if acc is None else {
            f"{split}/L1/local/mean": acc,
            f"{prefix}{split}/L1/local/mean": acc, f"{prefix}{split}/L1/local/worst": acc / 4,
            f"{prefix}{split}/L1/global/mean": acc / 2, f"{prefix}{split}/L1/acc": 1.5 * acc,
            f"{prefix}{split}/G/local/mean": acc / 5,
        }  # fmt: skip
        if acc is not None and trial is None:
            metrics |= {"best/round": 2.0, "best/test/L1/acc": 1.5 * acc + 0.25, "best/test/L1/local/mean": acc + 0.1}
        return RunInfo(
            run_id=f"{number:04x}" + digest[-28:],
            name=name or (f"trial-{trial:03d}" if trial is not None else f"{method}-seed{seed}"),
            experiment=experiment,
            status=status,
            tags={tag_names.IDENTITY: digest if trial is None else f"{digest}:trial-{trial:03d}"}
            | ({PARENT: parent} if parent else {})
            | {"pfl_ops.experiment_hash": digest, "pfl_ops.group_hash": group, "pfl_ops.own_stage": "L1"}
            | ({} if trial is not None else {"pfl_ops.partition_hash": f"partition of seed {seed}"})
            | dict(tags or {}),
            params={path: str(value) for path, value in described.flat.items()},
            metrics=metrics,
            start=number,
            end=number + 1,
        )

    return make


@pytest.fixture
def recorded_runs(made: Make) -> Shelf:
    """fliu and fedavg on digits and on kmnist, two seeds each: fliu is better on digits, fedavg on kmnist."""
    accuracies = {
        ("fliu", "digits"): 0.8,
        ("fedavg", "digits"): 0.7,
        ("fliu", "kmnist"): 0.8,
        ("fedavg", "kmnist"): 0.9,
    }
    return Shelf(
        [
            made(method, seed, acc + seed / 100, **{"data.name": data})
            for (method, data), acc in accuracies.items()
            for seed in (0, 1)
        ]
    )


@pytest.fixture
def study() -> Callable[..., RunInfo]:
    """The run of a study, which stands above its trials and test runs."""

    def make(name: str, run_id: str, experiment: str = "") -> RunInfo:
        tags = {tag_names.IDENTITY: f"study:0:{name}", "pfl_ops.study": name, "pfl_ops.group_hash": "of its base"}
        return RunInfo(run_id, "study", experiment or name, "FINISHED", tags, {}, {}, 0, 1)

    return make
