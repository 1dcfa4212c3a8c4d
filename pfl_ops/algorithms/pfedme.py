"""pFedMe: personal models as Moreau envelopes, solved for again at every step of the global one."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from pfl_ops.algorithms.base import Algorithm, Batch, Field, Models, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.errors import PflOpsError


@register("pfedme")
class PFedMe(Algorithm):
    """Every client minimises F_k(φ) + (λ/2) ‖φ − w‖², and its copy w of the global model follows φ.

    In each round every client k of the cohort starts with w_k = φ_k = Θ. Each of its R steps takes one minibatch ξ:

        φ_k ← φ_k − η_p (∇F_k(φ_k; ξ) + λ (φ_k − w_k))       K times on the same ξ; φ_k carries on from step to step
        w_k ← w_k − η λ (w_k − φ_k)                          sent; Θ ← (1 − β) Θ + β mean_S w_k

    R is the experiment's number of local steps, or what its local epochs come to. Recommended are the paper's R = 20
    and η = 0.005; η λ must stay below 1.

    State: central [P], the global model Θ; personal [N, P], the φ_k as last trained, all starting at Θ⁰.
    Stages: L1 and L2 are φ_k, G is Θ.
    Sent: one model down and one up, for each client of the cohort.

    Source: Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1
    (arXiv 2006.08848).
    Deviations: only the cohort trains, where Algorithm 1 trains all N clients and averages the cohort's (ours). The
    authors' code weighs w_k by n_k, adds 0.001 φ to the gradient, and scores w_k where it says φ_k.
    """

    recommended: ClassVar[Mapping[str, Any]] = {"training.local_steps": 20, "training.lr": 0.005}
    requires: ClassVar[Mapping[str, Any]] = {
        "training.optimiser": "sgd", "training.momentum": 0.0, "training.weight_decay": 0.0,
    }  # fmt: skip
    because: ClassVar[str] = "its two steps are plain ones"
    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    lam: float = Field(15.0, ge=0, title="λ", description="pull between a personal model and its client's w_k; η λ < 1")
    inner_steps: int = Field(5, ge=1, le=10_000, title="K", description="steps of φ_k on each minibatch")
    inner_lr: float = Field(
        0.09, gt=0, title="η_p", description="learning rate of φ_k; the experiment's η is that of w_k"
    )
    beta: float = Field(1.0, gt=0, title="β", description="share of the new mean in Θ; above 1: beyond it")

    def init(self, task: Task) -> State:
        return {"central": task.initial, "personal": task.rows(task.initial)}

    def step(self, m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
        w, phi = m["w"], m["phi"]
        for _ in range(self.inner_steps):
            phi = phi - self.inner_lr * (b.grad(phi) + self.lam * (phi - w))
        return {"phi": phi, "w": w - b.lr * self.lam * (w - phi)}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        if r.lr * self.lam >= 1:
            raise PflOpsError(f"pfedme needs η λ < 1, got {r.lr:g} x {self.lam:g}; lower training.lr or algorithm.lam")
        start = s["central"].expand(len(r.cohort), -1)
        m = r.walk({"w": start, "phi": start}, self.step)
        central = (1 - self.beta) * s["central"] + self.beta * r.mean(m["w"])
        return (
            {"central": central, "personal": Rows(r.cohort, m["phi"])},
            {"L2": Models(m["phi"], r.cohort), "G": Models(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["personal"][r.cohort], r.cohort)
