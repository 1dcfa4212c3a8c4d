"""FedProx with fine-tuning: one model for all, each client adapts a copy of it."""

from typing import ClassVar

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, StageName, Stages, State, Task, Update, register
from pfl_ops.algorithms.parts import fine_tuned


@register("fedprox_ft")
class FedProxFT(Algorithm):
    """FedProx, scored on what the clients make of its global model.

        θ_k ← θ_k − η (∇F_k(θ_k; ξ) + μ (θ_k − Θ))       from Θ
        Θ ← Σ_k p_k θ_k
        v_k ← train(Θ)                                   E_ft epochs from the new Θ, no pull; scored, then dropped

    State: central [P], the global model Θ.
    Stages: L1 and G are Θ, L2 is v_k.
    Sent: one model down and one up, for each client of the cohort.

    Source: the FedProx-P of Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning",
    CVPR 2024; federation as Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2
    (arXiv 1812.06127).
    Deviations: as fedprox in the weighting. E_ft defaults to the experiment's epochs or steps; no source states it, nor
    whether fine-tuning keeps the proximal term.
    """

    own_stage: ClassVar[StageName] = "L2"

    mu: float = Field(0.01, ge=0, title="μ", description="pull of the local model towards the global one")
    fine_epochs: int | None = Field(
        None, ge=1, le=10_000, title="E_ft", description="epochs of fine-tuning; none: as the experiment's training"
    )

    def init(self, task: Task) -> State:
        return {"central": task.initial}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        central = r.weights @ r.train(s["central"], pull=(self.mu, s["central"]))
        return {"central": central}, {"L2": fine_tuned(r, central, epochs=self.fine_epochs), "G": Models(central)}

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])
