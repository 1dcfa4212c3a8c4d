"""One method on a small federation, round by round."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pfl_ops.algorithms.base import Algorithm, ClientRows, Models, Net, Round, State, Task
from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.federation.loop.build import rule_of, with_extra
from pfl_ops.federation.loop.simulate import commit
from pfl_ops.federation.method.checked import CheckedMethod
from pfl_ops.federation.method.round import Traffic
from pfl_ops.federation.method.walk import Length
from pfl_ops.federation.scoring.stages import made
from pfl_ops.federation.settings import Training
from pfl_ops.federation.training.feed import Feed
from pfl_ops.federation.training.train import Trainer
from pfl_ops.testing.federations import Federation, quadratic_task

Values: TypeAlias = dict[str, Tensor]
"""The results of a round by name: `state/<key>` (rows of all clients), `L1`, `L2`, `G` and their `ctx`, and
`note/<name>` (of the cohort)."""


class MethodSimulation:
    """One method on one federation, round by round, without scores or files.

    Args:
        federation: who takes part.
        method: the algorithm.
        training: as in an experiment; `rounds` is the T that schedules see.
        weighting: of the aggregation.
        stack: clients stacked at once (vmap); None: one at a time (loop).
        dtype: of everything; None: as `training.precision` says, which is float64 or float32 here.
        seed: the run's.

    Attributes:
        state: the method's state. t: rounds finished. task: the method's task.
        traffic: what one client sent and received in each round.

    >>> how = Training(rounds=2, local_epochs=None, local_steps=1, batch_size=None, lr=0.5, precision="float64")
    >>> play = MethodSimulation(quadratic_task([0.0, 6.0], sizes=[1, 3], start=2.0), FedAvg(), how)
    >>> values = play.round()  # θ = 1 and 4, Θ = (1 · 1 + 3 · 4) / 4
    >>> values["L2"].tolist(), values["G"].tolist(), play.t
    ([[1.0], [4.0]], [3.25], 1)
    >>> play.at([1]).t, play.personal().params.tolist()  # the next round; L1 of all clients, Θ here
    (1, [3.25])
    """

    def __init__(
        self,
        federation: Federation,
        method: Algorithm,
        training: Training,
        *,
        weighting: Literal["samples", "uniform"] = "samples",
        stack: int | None = None,
        seed: int = 0,
    ) -> None:
        self.method, self.training, self.weighting = CheckedMethod(method), training, weighting
        self.dtype = torch.float32 if training.precision == "float32" else torch.float64
        width = federation.pool.x.shape[-1]
        feed = Feed(federation.pool, np.zeros(width), np.ones(width), torch.device("cpu"), self.dtype)
        self.task = self._task(federation, feed, seed)
        length = Length(training.local_epochs, training.local_steps, training.batch_size)
        self.trainer = Trainer(self.task, feed, rule_of(training), length, stack)
        self.state: State = self.method.init(self.task)
        self.t = 0
        self.traffic: list[Traffic] = []

    def _task(self, federation: Federation, feed: Feed, seed: int) -> Task:
        net = Net(federation.network)
        task = Task(
            net=net,
            layout=net.layout,
            initial=net.row().to(self.dtype),
            sizes=federation.pool.sizes,
            class_counts=federation.pool.class_counts(federation.n_classes),
            rounds=self.training.rounds,
            cohort_size=federation.n_clients,
            seed=seed,
            example=feed.inputs(torch.zeros(1, dtype=torch.int64)),
            loss=federation.loss,
        )
        return with_extra(task, federation.network, self.method)

    @property
    def everyone(self) -> Tensor:
        """All client numbers, int64 [N]."""
        return torch.arange(self.task.n_clients)

    def at(self, clients: Tensor | Sequence[int], purpose: str = "train") -> Round:
        """Return the next round for these clients, int64 [C]; duplicates count as draws."""
        who = torch.as_tensor(clients)
        return Round(
            self.trainer, self.t, who, weighting=self.weighting, lr_decay=self.training.lr_decay, purpose=purpose
        )

    def round(self, clients: Sequence[int] | None = None) -> Values:
        """Play one round of a cohort (none: all clients; duplicates count as draws); return its results."""
        r = self.at(self.everyone if clients is None else clients)
        update, stages = self.method.round(self.state, r)
        commit(self.state, update)
        noted = {f"note/{name}": value for name, value in r.notes.values().items()}
        found = {name: made(stage, r.cohort) for name, stage in stages.items()}
        held = self.personal()
        self.t += 1
        self.traffic.append(r.traffic)
        return self.values({**found, **({} if held is None else {"L1": held})}) | noted

    def personal(self, clients: Tensor | None = None) -> Models | None:
        """L1 of these clients, int64 [C] (none: all), after the last round."""
        return self.method.personal(self.state, self.at(self.everyone if clients is None else clients, "evaluate"))

    def run(self, cohorts: Sequence[Sequence[int] | None]) -> list[Values]:
        """Play one round for each cohort; return the results of each."""
        return [self.round(clients) for clients in cohorts]

    def values(self, stages: Mapping[str, Models] | None = None) -> Values:
        """Return copies of the state and of these stages, [N or C, P] or [P] by name."""
        found = {f"state/{k}": v[self.everyone] if isinstance(v, ClientRows) else v for k, v in self.state.items()}
        for name, models in (stages or {}).items():
            found[name] = models.params
            found |= {f"{name}/{key}": value for key, value in models.ctx.items()}
        return {name: value.detach().clone() for name, value in found.items()}


def quadratic(
    method: Algorithm,
    centres: Sequence[float] | Sequence[Sequence[float]],
    sizes: Sequence[int] | None = None,
    **settings: Any,
) -> State:
    """The state after some rounds of full-batch steps on `quadratic_task`, with the arguments of `quadratic_play`.

    >>> state = quadratic(FedAvg(), centres=[0.0, 6.0], sizes=[1, 3], start=2.0, rounds=2, cohorts=[None, [0]])
    >>> state["central"].tolist()  # 3.25 after all clients, half of it after client 0
    [1.625]
    """
    return quadratic_play(method, centres, sizes, **settings)[0].state


def quadratic_play(
    method: Algorithm,
    centres: Sequence[float] | Sequence[Sequence[float]],
    sizes: Sequence[int] | None = None,
    *,
    start: float = 0.0,
    lr: float = 0.5,
    rounds: int = 2,
    steps: int = 1,
    weighting: Literal["samples", "uniform"] = "samples",
    cohorts: Sequence[Sequence[int] | None] | None = None,
    **training: Any,
) -> tuple[MethodSimulation, list[Values]]:
    """Return the play of some rounds of `steps` full-batch steps each, and the state and the stages after each round.

    Args:
        method: the algorithm.
        centres, sizes, start: as in `quadratic_task`.
        lr: η. rounds: T. steps: J. weighting: of the aggregation.
        cohorts: the clients of each round; none: all.
        training: further fields of `Training`, say `lr_decay`.

    >>> play, values = quadratic_play(FedAvg(), centres=[0.0, 6.0], start=2.0, rounds=2)
    >>> [value["G"].tolist() for value in values]  # the mean of 1 and 4; of 1.25 and 4.25
    [[2.5], [2.75]]
    """
    how: dict[str, Any] = {"local_epochs": None, "local_steps": steps, "batch_size": None, "precision": "float64"}
    settings = Training(**{**how, "rounds": rounds, "lr": lr, **training})
    play = MethodSimulation(quadratic_task(centres, sizes, start), method, settings, weighting=weighting)
    return play, play.run(cohorts or [None] * rounds)


def quadratic_round(
    centres: Sequence[float] | Sequence[Sequence[float]],
    sizes: Sequence[int] | None = None,
    *,
    start: float = 0.0,
    lr: float = 0.5,
    steps: int = 1,
    weighting: Literal["samples", "uniform"] = "samples",
    clients: Sequence[int] | None = None,
    **training: Any,
) -> Round:
    """Return a round whose numbers can be checked by hand, to try its verbs on.

        F_k(w) = ½ ‖w − b_k‖²,  ∇F_k(w) = w − b_k,  ∇²F_k(w) = I;  a local step is w ← w − η (w − b_k)

    Args:
        centres, sizes, start: as in `quadratic_task`; `start` is `r.task.initial`, float64 [P].
        lr: η. steps: J, of one full batch each. weighting: of the aggregation.
        clients: the cohort, duplicates count as draws; none: all clients.
        training: further fields of `Training`, say `momentum`.
    Returns:
        Round 0.

    >>> r = quadratic_round([0.0, 6.0], sizes=[1, 3], start=2.0, lr=0.5)
    >>> r.train(r.task.initial).tolist()  # 2 − 0.5 (2 − 0) and 2 − 0.5 (2 − 6)
    [[1.0], [4.0]]
    >>> (r.weights @ r.train(r.task.initial)).tolist()  # FedAvg: (1 · 1 + 3 · 4) / 4
    [3.25]
    """
    how: dict[str, Any] = {"local_epochs": None, "local_steps": steps, "batch_size": None, "precision": "float64"}
    settings = Training(**{**how, "rounds": 1, "lr": lr, **training})
    play = MethodSimulation(quadratic_task(centres, sizes, start), FedAvg(), settings, weighting=weighting)
    return play.at(play.everyone if clients is None else clients)
