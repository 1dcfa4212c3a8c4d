"""FedAvg with fine-tuning: one model for all, each client adapts a copy of it."""

from typing import ClassVar

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, StageName, Stages, State, Task, Update, register
from pfl_ops.algorithms.parts import fine_tuned


@register("fedavg_ft")
class FedAvgFT(Algorithm):
    """FedAvg, scored on what the clients make of its global model.

        θ_k ← train(Θ)
        Θ ← Σ_k p_k θ_k
        v_k ← train(Θ)                                   E_ft epochs from the new Θ; scored, then dropped

    State: central [P], the global model Θ.
    Stages: L1 and G are Θ, L2 is v_k.
    Sent: one model down and one up, for each client of the cohort.

    Source: the FedAvg-P of Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning",
    CVPR 2024; federation as McMahan et al., AISTATS 2017, Algorithm 1 (arXiv 1602.05629).
    Deviations: E_ft defaults to the experiment's epochs or steps; no source states it.
    """

    own_stage: ClassVar[StageName] = "L2"

    fine_epochs: int | None = Field(
        None, ge=1, le=10_000, title="E_ft", description="epochs of fine-tuning; none: as the experiment's training"
    )

    def init(self, task: Task) -> State:
        return {"central": task.initial}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        central = r.weights @ r.train(s["central"])
        return {"central": central}, {"L2": fine_tuned(r, central, epochs=self.fine_epochs), "G": Models(central)}

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])
