"""SCAFFOLD: control variates against client drift."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Rows, Stages, State, Task, Update, register


@register("scaffold")
class Scaffold(Algorithm):
    """FedAvg whose clients correct their steps by what they know of the mean gradient of all clients.

        θ_k ← θ_k − η (∇F_k(θ_k; ξ) − c_k + c)           J_k steps from Θ
        c_k⁺ = c_k − c + (Θ − θ_k) / (J_k η)
        Θ ← Θ + η_g mean_S (θ_k − Θ)
        c ← c + (1/N) Σ_S (c_k⁺ − c_k)

    State: central [P], the global model Θ; c [P] and c_k [N, P], the control variates, all starting at 0.
    Stages: L1 and G are Θ, L2 is θ_k.
    Sent: a model and a control variate each way, for each client of the cohort.

    Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning", ICML 2020, Algorithm 1, option II (arXiv 1910.06378).
    Deviations: J_k is the number of steps really taken, which differs between clients where epochs are counted.
    """

    requires: ClassVar[Mapping[str, Any]] = {"training.optimiser": "sgd", "training.momentum": 0.0}
    because: ClassVar[str] = "c_k is a mean gradient: (Θ − θ_k) / (J_k η) holds for plain SGD only"
    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    global_lr: float = Field(1.0, gt=0, title="η_g", description="step of the server along the mean change")

    def init(self, task: Task) -> State:
        zero = torch.zeros_like(task.initial)
        return {"central": task.initial, "c": zero, "c_k": task.rows(zero)}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        received, c = s["central"], s["c"]
        theta = r.train(received, shift=c - s["c_k"][r.cohort])
        central = received + self.global_lr * (r.mean(theta) - received)
        change = (received - theta).div_((r.steps() * r.lr)[:, None]).sub_(c)  # c_k⁺ − c_k
        r.sent(up=2 * r.layout.size, down=2 * r.layout.size)
        return (
            {
                "central": central,
                "c": c + change.sum(dim=0) / r.task.n_clients,
                "c_k": Rows(r.cohort, s["c_k"][r.cohort].add_(change)),
            },
            {"L2": Models(theta, r.cohort), "G": Models(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])
