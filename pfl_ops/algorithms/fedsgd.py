"""FedSGD: one exact gradient of each client, one step of the server."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pfl_ops.algorithms.base import Algorithm, Models, Round, Stages, State, Task, Update, register


@register("fedsgd")
class FedSGD(Algorithm):
    """FedAvg with a single step a round, on all of a client's data.

        g_k = ∇F_k(Θ)                                    over all n_k samples
        Θ ← Θ − η Σ_k p_k g_k

    State: central [P], the global model Θ.
    Stages: L1 and G are Θ, L2 is Θ − η g_k.
    Sent: one model down and one gradient up, for each client of the cohort.

    Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS 2017, Sec. 2 (arXiv 1602.05629).
    Deviations: none. The experiment's local epochs, local steps and batch size are not used.
    """

    requires: ClassVar[Mapping[str, Any]] = {
        "training.optimiser": "sgd",
        "training.momentum": 0.0,
        "training.weight_decay": 0.0,
    }
    because: ClassVar[str] = "a round is one step along the mean gradient, and nothing else"
    ignores: ClassVar[tuple[str, ...]] = ("training.local_epochs", "training.local_steps")

    def init(self, task: Task) -> State:
        return {"central": task.initial}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        g = r.grad(s["central"])
        central = s["central"] - r.lr * (r.weights @ g)
        return {"central": central}, {"L2": Models(s["central"] - r.lr * g, r.cohort), "G": Models(central)}

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])
