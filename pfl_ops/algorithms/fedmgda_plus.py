"""FedMGDA+: a common descent direction of all clients, near their given weights."""

import torch

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Stages, State, Task, Update, register
from pfl_ops.algorithms.solvers import gram, min_norm


@register("fedmgda_plus")
class FedMGDAPlus(Algorithm):
    """One global model that moves along the shortest mixture of the clients' normalised changes.

        θ_k ← train(Θ)
        ĝ_k = (Θ − θ_k) / ‖Θ − θ_k‖
        λ = argmin ‖Σ_k λ_k ĝ_k‖²      on the simplex, with |λ_k − λ0_k| <= ε, λ0 = p_k
        Θ ← Θ − η_g Σ_k λ_k ĝ_k

    State: central [P], the global model Θ.
    Stages: L1 and G are Θ, L2 is θ_k.
    Sent: one model down and one up, for each client of the cohort.

    Source: Hu, Shaloudegi, Zhang, Yu, "Federated Learning Meets Multi-Objective Optimization", IEEE Transactions on
    Network Science and Engineering 2022, Algorithm 1 (arXiv 2006.11489).
    Deviations: clients that did not move are left out and λ0 is renormalised over the others (ours: one such row is the
    shortest mixture, and Θ would stand still). η_g is the length of a step whatever η was, by default 1 (ours); a
    public code takes the round's η for it.
    """

    eps: float = Field(0.1, ge=0, title="ε", description="how far λ_k may be from λ0_k; 1: anywhere on the simplex")
    global_lr: float | None = Field(
        1.0, gt=0, title="η_g", description="length of the server's step; none: the round's η"
    )

    def init(self, task: Task) -> State:
        return {"central": task.initial}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        received = s["central"]
        theta = r.train(received)
        rows = received - theta
        length = rows.norm(dim=1)
        moved = length != 0
        central = received
        if bool(moved.any()):
            rows.div_(length.where(moved, 1)[:, None])
            prior = (r.weights[moved] / r.weights[moved].sum()).double().cpu()
            products = gram(rows)[moved.cpu()][:, moved.cpu()]
            lam = torch.zeros_like(length)
            lam[moved] = min_norm(products, (prior - self.eps).clamp(min=0), (prior + self.eps).clamp(max=1)).to(lam)
            central = received - (self.global_lr or r.lr) * (lam @ rows)
        return {"central": central}, {"L2": Models(theta, r.cohort), "G": Models(central)}

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])
