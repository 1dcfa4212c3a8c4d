"""DRFA: one model for the worst mixture of the clients' data."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from pfl_ops.algorithms import dual
from pfl_ops.algorithms.base import Algorithm, Batch, Field, Models, Round, Stages, State, Task, Update, register
from pfl_ops.algorithms.parts import counted_steps
from pfl_ops.errors import PflOpsError


@register("drfa")
class DRFA(Algorithm):
    """FedAvg whose clients are drawn by weights λ that grow with their losses: min_Θ max_λ Σ_k λ_k F_k(Θ).

    In each round the cohort S, m clients, is drawn with probabilities λ, with replacement (who is drawn twice trains
    once and counts twice in the means); t' is uniform on 1..τ, τ = J:

        θ_k ← train(Θ), τ steps; θ'_k is θ_k after t' of them
        Θ ← mean_S θ_k,   Θ' = mean_S θ'_k
        v_k = (N / m) f_k(Θ'; ξ) for k in U, m clients drawn uniformly without replacement; 0 for the others
        λ ← Π_Δ(λ + τ γ v)

    Π_Δ is the Euclidean projection onto the simplex, f_k the loss on one minibatch.

    State: central [P], the global model Θ; lam [N], the λ_k, starting at n_k / n.
    Stages: L1 and G are Θ, L2 is θ_k.
    Sent: Θ and t' down, θ_k and θ'_k up, for each client of the cohort; Θ' down, one loss up, for each of U. Of these
    the models are counted, not single numbers.

    Source: Deng, Kamani, Mahdavi, "Distributionally Robust Federated Averaging", NeurIPS 2020, Algorithm 1
    (arXiv 2102.12660).
    Deviations: none from Algorithm 1; with momentum or Adam the local steps are the experiment's. The authors' code
    differs, and each difference is an option: `sampling: uniform` draws S uniformly without replacement and takes
    Θ ← Θ + Σ_S λ_k (N / m)(θ_k − Θ), whose weights do not sum to 1; `snapshot: own` has each client draw its own t'
    from 1..τ − 1 and keep its model before that step; `floor` 1e-3 raises the first λ_k at or under it to it and
    renormalises; `gamma` 0.09 with `gamma_decay` 0.9 is its 0.1 · 0.9^(t + 1).
    """

    recommended: ClassVar[Mapping[str, Any]] = {"training.local_steps": 5}
    requires: ClassVar[Mapping[str, Any]] = {"training.local_steps": ..., "participation.kind": "uniform"}
    because: ClassVar[str] = "its snapshot is taken at one of τ local steps, and its cohort is drawn by λ"
    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    gamma: float = Field(3e-3, ge=0, title="γ", description="step of the weights λ along the losses, for a local step")
    gamma_decay: float = Field(1.0, gt=0, le=1, description="factor on γ after each round")
    sampling: Literal["dual", "uniform"] = Field(
        "dual", description="cohort drawn by λ and averaged, or uniformly and weighted by λ_k N / m"
    )
    snapshot: Literal["shared", "own"] = Field(
        "shared", title="t'", description="one t' in 1..τ for all, or one a client in 0..τ - 2"
    )
    floor: float = Field(0.0, ge=0, lt=1, description="the first λ_k at or under it is raised to it; 0: none")

    def init(self, task: Task) -> State:
        return {"central": task.initial, "lam": dual.by_size(task)}

    def cohort(self, s: State, task: Task, generator: np.random.Generator) -> Tensor:
        """The clients of the next round, int64 [m]."""
        if self.sampling == "dual":
            return dual.drawn(s["lam"], task.cohort_size, generator)
        return torch.from_numpy(generator.choice(task.n_clients, task.cohort_size, replace=False))

    @staticmethod
    def step(m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
        w = b.descend("w", m["w"], b.grad(m["w"]))
        now = m["at"] == b.j + 1
        return {"w": w, "snap": w.where(now[:, None], m["snap"])} if bool(now.any()) else {"w": w}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        received, lam = s["central"], s["lam"]
        tau = counted_steps(r, self.name)
        start = received.expand(len(r.cohort), -1)
        m = r.walk({"w": start, "snap": start, "at": self._at(r, tau).to(received.device)}, self.step)
        if self.sampling == "dual":
            central = r.mean(m["w"])
        else:
            shares = lam[r.cohort] * r.counts * (r.task.n_clients / r.counts.sum())
            central = received + shares @ (m["w"] - received)
        v = dual.guessed_losses(r, r.mean(m["snap"]))
        lam = self._floored(dual.ascended(lam, v, tau * self.gamma * self.gamma_decay**r.t))
        dual.sent_twice(r)
        return {"central": central, "lam": lam}, {"L2": Models(m["w"], r.cohort), "G": Models(central)}

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])

    def _at(self, r: Round, tau: int) -> Tensor:
        """After how many steps each client's snapshot is taken, int64 [C]."""
        if self.snapshot == "shared":
            return torch.full_like(r.cohort, int(r.rng("snapshot").integers(1, tau + 1)))
        if tau < 2:
            raise PflOpsError(f"drfa's snapshot=own needs training.local_steps >= 2, got {tau}")
        return torch.from_numpy(r.rng("snapshot").integers(0, tau - 1, r.task.n_clients))[r.cohort]

    def _floored(self, lam: Tensor) -> Tensor:
        low = (lam <= self.floor).nonzero()[:1, 0]
        if self.floor == 0 or not len(low):
            return lam
        raised = lam.index_fill(0, low, self.floor)
        return raised / raised.sum()
