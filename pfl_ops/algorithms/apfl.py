"""APFL: a mixture of a personal and the global model, in a proportion that each client learns."""

from typing import ClassVar, Literal

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
    Deviations: none from Algorithm 1; with momentum or Adam the steps of w and v are the experiment's, α's is plain.
    Adam divides by the size of a gradient: without weight decay the factor α before ∇F(v̄; ξ) has hardly an effect.
    Public codes differ from the algorithm and from each other: the gradient at v instead of v̄, without the factor α,
    mixed scores, v overwritten by v̄ each round, a term 0.02 α in α's gradient. `mixing: round` is the reading of a
    widely used library (there with `every: step`), behind the numbers of the FLIU paper:

        w ← w − η ∇F(w; ξ),  v ← v − η ∇F(v; ξ)
        α ← clip(α − η (⟨α ∇F(v; ξ) + (1 − α) ∇F(w; ξ), v − w⟩ + 0.02 α), 0, 1)      v − w after the step
        v ← α v + (1 − α) w                              once a round, at its end; L1 and L2 are v
    """

    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    alpha: float = Field(
        0.5, ge=0, le=1, title="α", description="share of the personal model in the mixture at the start"
    )
    adaptive: bool = Field(True, description="clients learn their own α")
    every: Literal["round", "step"] = Field(
        "round", description="when α moves: at a round's first step, or at every step"
    )

    mixing: Literal["step", "round"] = Field(
        "step", description="v̄ in every gradient (the paper), or v trained apart and mixed at a round's end (a library)"
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
        if self._moves(b):
            new["alpha"] = (alpha - b.lr * (g * (v - w)).sum(dim=1)).clamp(0, 1)
        return new

    def step_apart(self, m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
        w, v, alpha = m["w"], m["v"], m["alpha"]
        g_w, g_v = b.grad(w), b.grad(v)
        new = {"w": b.descend("w", w, g_w), "v": b.descend("v", v, g_v)}
        if self._moves(b):
            slope = (torch.lerp(g_w, g_v, alpha[:, None]) * (new["v"] - new["w"])).sum(dim=1) + 0.02 * alpha
            new["alpha"] = (alpha - b.lr * slope).clamp(0, 1)
        return new

    def _moves(self, b: Batch) -> bool:
        return self.adaptive and (self.every == "step" or b.j == 0)

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        start = s["central"].expand(len(r.cohort), -1)
        carry = {"w": start, "v": s["personal"][r.cohort], "alpha": s["alpha"][r.cohort]}
        m = r.walk(carry, self.step if self.mixing == "step" else self.step_apart)
        central, mixed = r.mean(m["w"]), torch.lerp(m["w"], m["v"], m["alpha"][:, None])
        v = m["v"] if self.mixing == "step" else mixed
        return (
            {"central": central, "personal": Rows(r.cohort, v), "alpha": Rows(r.cohort, m["alpha"])},
            {"L2": Models(mixed, r.cohort), "G": Models(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        v = s["personal"][r.cohort]
        if self.mixing == "round":
            return Models(v, r.cohort)
        return Models(torch.lerp(s["central"], v, s["alpha"][r.cohort][:, None]), r.cohort)
