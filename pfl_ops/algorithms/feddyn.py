"""FedDyn: a regulariser that moves until the clients' optima and the federation's agree."""

from typing import ClassVar

import torch

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Rows, Stages, State, Task, Update, register


@register("feddyn")
class FedDyn(Algorithm):
    """Every client's objective gets a linear term, so that all of them come to rest at one model.

        θ_k ← θ_k − η (∇F_k(θ_k; ξ) − g_k + α (θ_k − Θ))   from Θ
        g_k ← g_k − α (θ_k − Θ)                            stays with the client
        h ← h − (α/N) Σ_S (θ_k − Θ)                        so that h = (1/N) Σ g_k over all N, always
        Θ ← mean_S θ_k − h/α                               the new h

    At rest θ_k = Θ and ∇F_k(Θ) = g_k, so h = 0: Θ is where the plain mean of all F_k is least.

    State: central [P], the global model Θ; h [P] and g [N, P], the g_k, all starting at 0.
    Stages: L1 and G are Θ, L2 is θ_k.
    Sent: one model down and one up, for each client of the cohort.

    Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic
    Regularization", ICLR 2021, Algorithm 1 (arXiv 2111.04263).
    Deviations: the local problem is minimised by the experiment's epochs or steps, not to the end. The authors' code
    weighs clients, α_k = α n/(N n_k), and clips gradients to norm 10; neither is done here.
    """

    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    alpha: float = Field(0.1, gt=0, title="α", description="pull towards Θ, and scale of the linear terms")

    def init(self, task: Task) -> State:
        zero = torch.zeros_like(task.initial)
        return {"central": task.initial, "h": zero, "g": task.rows(zero)}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        received, g = s["central"], s["g"][r.cohort]
        theta = r.train(received, shift=-g, pull=(self.alpha, received))
        change = self.alpha * (received - theta)
        h = s["h"] + change.sum(dim=0) / r.task.n_clients
        central = r.mean(theta) - h / self.alpha
        return (
            {"central": central, "h": h, "g": Rows(r.cohort, g + change)},
            {"L2": Models(theta, r.cohort), "G": Models(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])
