"""SCAFF-PD: an accelerated primal-dual method for the worst mixture of clients, with control variates against drift."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from pfl_ops.algorithms.base import Algorithm, Batch, Field, Models, Round, Stages, State, Task, Update, register
from pfl_ops.algorithms.solvers import project_to_simplex


@register("scaff_pd")
class ScaffPD(Algorithm):
    """Two exchanges a round: losses and gradients move the weights λ, then corrected local steps move Θ.

    In round t, with L_k = F_k(Θ) over all of client k's data and g_k a gradient of F_k at Θ (one minibatch, or all):

        s = (1 + ϑ) L^t − ϑ L^{t−1}                                    L^{−1} = L^0
        λ ← argmax_λ ⟨s, λ⟩ − ψ(λ) − ‖λ − λ^t‖² / (2σ)                 on the simplex, ψ(λ) = (ρ / 2N) Σ_k (N λ_k − 1)²
          = Π_Δ((s + ρ 1 + λ^t / σ) / (ρ N + 1 / σ))
        c = Σ_k λ_k g_k
        θ_k ← θ_k − η (∇F_k(θ_k; ξ) − g_k + c)                         J steps from Θ
        Θ ← Θ − η_g Σ_k λ_k (Θ − θ_k)

    State: central [P], the global model Θ; lam [N], the λ_k, starting at 1/N; losses [N], the last L_k; seen [N], whose
    L_k is known.
    Stages: L1 and G are Θ, L2 is θ_k.
    Sent: Θ and c down, g_k and θ_k up, for each client of the cohort; its loss is not counted.

    Source: Yu, Karimireddy, Ma, Jordan, "Scaff-PD: Communication Efficient Fair and Robust Federated Learning", 2023
    (arXiv 2307.13381).
    Deviations: the scale of ψ and the weights λ_k in the server's step could not be confirmed. The paper has every
    client in both exchanges; with a cohort (ours) absent clients keep their last L_k, one that was never seen counts
    with the mean of the losses seen, one seen for the first time has L^{t−1} = L^t, and the sums run over the cohort
    with λ renormalised, or with p_k where λ has nothing there. ϑ and σ are constant; the theory has
    ϑ_t = σ_{t−1} / σ_t and an effective step J η η_g. Ours: with momentum or Adam the local steps are the
    experiment's.
    """

    recommended: ClassVar[Mapping[str, Any]] = {"training.local_steps": 5}
    ignores_with_all: ClassVar[tuple[str, ...]] = ("participation.weighting",)  # λ sums to 1 over all clients

    rho: float = Field(0.2, ge=0, title="ρ", description="how strongly λ is held at 1/N; 0: the worst mixture of all")
    sigma: float = Field(0.1, gt=0, title="σ", description="step of the weights λ")
    theta: float = Field(1.0, ge=0, title="ϑ", description="how far the losses are extrapolated")
    global_lr: float = Field(1.0, gt=0, title="η_g", description="step of the server along the mean change")
    gradient: Literal["stochastic", "full"] = Field(
        "stochastic", title="g_k", description="of one minibatch, fresh in each round, or of all the client's data"
    )

    def init(self, task: Task) -> State:
        zero = task.initial.new_zeros(task.n_clients)
        return {"central": task.initial, "lam": zero + 1 / task.n_clients, "losses": zero, "seen": zero.bool()}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        received = s["central"]
        losses, seen = s["losses"].clone(), s["seen"].clone()
        losses[r.cohort], seen[r.cohort] = r.losses(received), True
        lam = self._ascended(s, losses, seen)
        p = lam[r.cohort]
        p = p / p.sum() if p.sum() > 0 else r.weights

        g = self._gradients(received, r)
        theta = r.train(received, shift=p @ g - g)
        central = received - self.global_lr * (received - p @ theta)
        r.sent(up=2 * r.layout.size, down=2 * r.layout.size)
        return (
            {"central": central, "lam": lam, "losses": losses, "seen": seen},
            {"L2": Models(theta, r.cohort), "G": Models(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["central"])

    def _ascended(self, s: State, losses: Tensor, seen: Tensor) -> Tensor:
        """The new λ, [N]."""
        before = s["losses"].where(s["seen"], losses)
        score = (1 + self.theta) * losses - self.theta * before
        score = score.where(seen, losses[seen].mean())
        n = len(score)
        return project_to_simplex((score + self.rho + s["lam"] / self.sigma) / (self.rho * n + 1 / self.sigma))

    def _gradients(self, received: Tensor, r: Round) -> Tensor:
        """g_k, [C, P]."""
        if self.gradient == "full":
            return r.grad(received)

        def step(_: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
            return {"g": b.grad(received)}

        return r.walk({"g": received.new_zeros(len(r.cohort), len(received))}, step, steps=1, stream="gradient")["g"]
