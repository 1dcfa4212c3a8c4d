"""FLIU: every client mixes the new global model into its own."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.schedules import Adaptive, Gamma


@register("fliu")
class FLIU(Algorithm):
    """Local models that go on from a mixture of their own and the average, more of their own the more data they have.

        θ_k ← train(θ_k)                                 sent
        Θ ← mean θ_k
        θ_k ← γ_k θ_k + (1 − γ_k) Θ

    State: central [P], the global model Θ; theta [N, P], the θ_k after mixing, all starting at Θ⁰.
    Stages: L1 is the mixed θ_k, L2 the trained θ_k, G is Θ.
    Sent: one model down and one up, for each client of the cohort.
    Noted: gamma, γ_k; gain, g_k, with γ's schedule `feedback`.

    Source: Hussaini, Theiß, Stein, "Local Performance vs. Out-of-Distribution Generalization: An Empirical Analysis of
    Personalized Federated Learning in Heterogeneous Data Environments", Algorithm 1, Eq. 3 (mixing)
    and Eq. 4 (adaptive γ).
    Deviations: none; schedules of γ but `fixed` and `adaptive` are ours.
    """

    recommended: ClassVar[Mapping[str, Any]] = {"training.optimiser": "adam", "training.lr": 0.001}
    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    gamma: Gamma = Field(default_factory=Adaptive, title="γ", description="share of its own that a model keeps")

    def init(self, task: Task) -> State:
        return {"central": task.initial, "theta": task.rows(task.initial)}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        theta = r.train(s["theta"][r.cohort], share=self.gamma.training_share)
        central = r.mean(theta)
        gamma = self.gamma.of_cohort(r, theta, central)
        r.note("gamma", gamma)
        mixed = torch.lerp(central, theta, gamma[:, None])  # γ θ + (1 − γ) Θ in one pass
        return (
            {"central": central, "theta": Rows(r.cohort, mixed)},
            {"L2": Models(theta, r.cohort), "G": Models(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["theta"][r.cohort], r.cohort)
