"""APFL: a mixture of a personal and the global model, in a proportion that each client learns."""

from typing import Literal

import torch
from torch import Tensor

from pfl_ops.algorithms.base import Algorithm, Batch, Field, Models, Round, Rows, Stages, State, Task, Update, register


@register("apfl")
class APFL(Algorithm):
    """Every client predicts with α_k v_k + (1 − α_k) Θ.

    In each round every client k of the cohort starts w at Θ. Each step takes one minibatch ξ and the values before it:

        v̄ = α v + (1 − α) w
        w ← w − η ∇F(w; ξ)                               sent; Θ ← mean w_k
        v ← v − η α ∇F(v̄; ξ)                             stays with the client
        α ← clip(α − η ⟨∇F(v̄; ξ), v − w⟩, 0, 1)          once a round, at its first step (option: at every step)

    State: central [P], the global model Θ; personal [N, P], the v_k, all starting at Θ⁰; alpha [N], the α_k.
    Stages: L1 is α_k v_k + (1 − α_k) Θ with the new Θ, L2 is α_k v_k + (1 − α_k) w_k, G is Θ.
    Sent: one model down and one up, for each client of the cohort.

    Source: Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, Algorithm 1 (arXiv 2003.13461).
    Deviations: none from Algorithm 1. Public codes differ from it and from each other: the gradient at v instead of v̄,
    without the factor α, mixed scores, v overwritten by v̄ each round, a term 0.02 α in α's gradient.
    """

    alpha: float = Field(
        0.5, ge=0, le=1, title="α", description="share of the personal model in the mixture at the start"
    )
    adaptive: bool = Field(True, description="clients learn their own α")
    every: Literal["round", "step"] = Field(
        "round", description="when α moves: at a round's first step, or at every step"
    )

    def init(self, task: Task) -> State:
        return {
            "central": task.initial,
            "personal": task.rows(task.initial),
            "alpha": task.rows(torch.full_like(task.initial[0], self.alpha)),
        }

    def step(self, m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
        w, v, alpha = m["w"], m["v"], m["alpha"]
        g = b.grad(torch.lerp(w, v, alpha[:, None]))
        new = {"w": b.descend("w", w, b.grad(w)), "v": b.descend("v", v, alpha[:, None] * g)}
        if self.adaptive and (self.every == "step" or b.j == 0):
            new["alpha"] = (alpha - b.lr * (g * (v - w)).sum(dim=1)).clamp(0, 1)
        return new

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        start = s["central"].expand(len(r.cohort), -1)
        m = r.walk({"w": start, "v": s["personal"][r.cohort], "alpha": s["alpha"][r.cohort]}, self.step)
        central = r.mean(m["w"])
        return (
            {"central": central, "personal": Rows(r.cohort, m["v"]), "alpha": Rows(r.cohort, m["alpha"])},
            {"L2": Models(torch.lerp(m["w"], m["v"], m["alpha"][:, None]), r.cohort), "G": Models(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(torch.lerp(s["central"], s["personal"][r.cohort], s["alpha"][r.cohort][:, None]), r.cohort)
