"""Federations that can be counted on paper, and methods whose models are known beforehand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pfl_ops.data.clients import Clients, Pool
from pfl_ops.federation.loop.simulate import Simulation
from pfl_ops.federation.method.contract import Models, Rows, Stages, State, Task, Update
from pfl_ops.federation.method.round import Round
from pfl_ops.federation.settings import Evaluation, Execution, Training, UniformParticipation
from pfl_ops.federation.state import snapshot

LOOP = Execution(device="cpu", way="loop", threads=1)
N_FEATURES, N_CLASSES = 2, 3
HELD: tuple[list[int], ...] = ([0, 0, 0, 1], [1, 1, 2], [], [2])
"""Held-out labels of four clients, one of them without any. Of all 8 samples 3 are of class 0, 3 of class 1, 2 of 2."""


def pool(labels: Sequence[Sequence[int]], seed: int = 0) -> Pool:
    """Samples with these labels, a list a client, shuffled over the pool; features are noise around the label."""
    draws = np.random.default_rng(seed)
    y = np.array([label for own in labels for label in own], dtype=np.int64)
    owner = np.repeat(np.arange(len(labels)), [len(own) for own in labels])
    order = draws.permutation(len(y))
    x = (draws.normal(size=(len(y), N_FEATURES)) + y[:, None]).astype(np.float32)
    index = [torch.from_numpy(np.flatnonzero(owner[order] == k)) for k in range(len(labels))]
    return Pool(torch.from_numpy(x[order]), torch.from_numpy(y[order]), index)


def clients(held: Sequence[Sequence[int]] = HELD, train: Sequence[Sequence[int]] | None = None) -> Clients:
    """A federation with these held-out labels; training labels: 5 + k samples of all classes for client k."""
    train = train or [[(i + k) % N_CLASSES for i in range(5 + k)] for k in range(len(held))]
    trained = pool(train)
    return Clients(
        train=trained, held=pool(held, seed=1), split="test", n_classes=N_CLASSES, shape=(N_FEATURES,),
        mean=np.zeros(N_FEATURES, np.float32), std=np.ones(N_FEATURES, np.float32), data_digest="d",
        partition_digest="p", table=trained.class_counts(N_CLASSES).numpy(), recorded=None,  # type: ignore[arg-type]
    )  # fmt: skip


def network(body: Callable[[], nn.Module] = nn.Sequential, n_features: int = N_FEATURES) -> nn.Module:
    """A linear model, or one behind a body; always with the same first parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = nn.Module()
        made.body = body()
        made.head = nn.Linear(n_features, N_CLASSES)
    return made


def always(label: int, like: Tensor) -> Tensor:
    """The linear model that gives every sample the class `label`: weights 0, one bias 1."""
    row = torch.zeros_like(like)
    row[N_CLASSES * N_FEATURES + label] = 1
    return row


class Puppet:
    """A method whose models always answer one class: L1 of client k class l1(k), L2 after round t l2(k, t), G g(t).

    Args:
        l1, l2, g: those classes; None: the method has no such stage. lazy: L2 and G as functions.
    """

    def __init__(
        self,
        l1: Callable[[int], int] | None = lambda k: k % 3,
        l2: Callable[[int, int], int] | None = lambda k, t: (k + t) % 3,
        g: Callable[[int], int] | None = lambda t: t % 3,
        lazy: bool = False,
    ) -> None:
        self.l1, self.l2, self.g, self.lazy = l1, l2, g, lazy
        self.asked: list[list[int]] = []

    def init(self, task: Task) -> State:
        return {"rounds": task.rows(task.initial[0] * 0)}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        stages: Stages = {}
        if self.l2 is not None:
            stages["L2"] = self._l2(r) if self.lazy else self._l2(r)(r.cohort)
        if self.g is not None:
            central = Models(always(self.g(r.t), r.task.initial))
            stages["G"] = (lambda _: central) if self.lazy else central
        return {"rounds": Rows(r.cohort, s["rounds"][r.cohort] + 1)}, stages

    def _l2(self, r: Round) -> Callable[[Tensor], Models]:
        def models(who: Tensor) -> Models:
            self.asked.append(who.tolist())
            return rows(who, lambda k: self.l2(k, r.t), r)  # type: ignore[misc]

        return models

    def personal(self, s: State, r: Round) -> Models | None:
        return None if self.l1 is None else rows(r.cohort, self.l1, r)


def rows(who: Tensor, label: Callable[[int], int], r: Round) -> Models:
    """One model a client, each answering one class."""
    return Models(torch.stack([always(label(int(k)), r.task.initial) for k in who]), who)


def simulation(
    method: Any,
    *,
    data: Clients | None = None,
    net: nn.Module | None = None,
    rounds: int = 2,
    share: float = 1.0,
    training: dict[str, Any] | None = None,
    evaluation: dict[str, Any] | None = None,
    execution: Execution = LOOP,
    folder: Path | None = None,
    **rest: Any,
) -> Simulation:
    """A simulation on a federation of this page, everything in float64 and one thread unless said otherwise."""
    how = {"batch_size": 3, "lr": 0.2, "precision": "float64", **(training or {})}
    return Simulation(
        net or network(), method, data or clients(), Training(rounds=rounds, **how), UniformParticipation(share=share),
        Evaluation(**(evaluation or {})), execution=execution, folder=folder, identity="little", **rest,
    )  # fmt: skip


def timeless(metrics: dict[str, float]) -> dict[str, float]:
    """Without what depends on the clock and on the process."""
    machine = ("cost/train_seconds", "cost/eval_seconds", "cost/samples_per_second", "cost/peak_mib")
    return {key: value for key, value in metrics.items() if key not in machine}


def traces(sim: Simulation) -> dict[str, Any]:
    """All that a finished run leaves, but for clocks: records, final scores, table, state, models."""
    state = {name: tensor for part in snapshot.parts(sim.state, whole=True) for name, tensor in part.items()}
    personal = sim.personal_models()
    return {
        "records": [(r.round, timeless(r.metrics)) for r in sim.records],
        "final": timeless(sim.final),
        "table": {name: values.tolist() for name, values in sim.client_table.items()},
        **{f"state/{k}": v for k, v in state.items()},
        **{f"global/{k}": v for k, v in (sim.global_model() or {}).items()},
        **({} if personal is None else {"personal": personal.params}),
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Both left the same, bit for bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, other[name]), name
        else:
            assert repr(value) == repr(other[name]), name  # by text: NaN is NaN
