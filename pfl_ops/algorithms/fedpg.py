"""FedPG: a global model that gets better for every client, and personal ones that make it worse for no client."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Rows, Stages, State, Task, Update, register
from pfl_ops.algorithms.descent_direction import (
    Direction,
    common_descent,
    largest_drift,
    mean_descent,
    unfairness,
)
from pfl_ops.algorithms.solvers import gram


@register("fedpg")
class FedPG(Algorithm):
    """Θ moves along a direction that descends for all clients, v_k along one that drifts from it to the client's own.

    In each round every client k of the cohort S_t sends its gradient at Θ and its loss L_k(Θ); the server finds d:

        g_k ← (Θ − train(Θ)) / η                         or ∇F_k(Θ), `gradient: full`
        ĝ_k ← μ g_k / ‖g_k‖, μ = mean ‖g_k‖;  ∇F = Σ_S c_k g_k, the gradient of F = −cos(L, 1)
        Q ← rows ĝ_k of S_t, ∇F, and the last gradients of clients seen in rounds t − τ .. t − 1 but absent now
        λ ← argmin ½ ‖Qᵀλ‖² on the simplex;  d ← −σ Qᵀλ, σ = ‖mean g‖ / ‖Qᵀλ‖
        γ_k ← the largest γ in [0, 1] with ((−g_k − d) γ + d) · g_j <= 0 for all j ≠ k in S_t, or 0
        d_k ← (−g_k − d) γ_k + d;  v_k ← Θ + η d_k;  Θ ← Θ + η d

    with c_k = (Σ L · L_k / ‖L‖² − 1) / (√C ‖L‖) and τ = M/|S_t|, M the clients seen so far. A gradient of length zero
    is left out with its loss; where d is about zero, ∇F is left out; where it still is, Θ stays.

    State: central [P], the global model Θ; personal [N, P], the v_k as last built, all starting at Θ⁰; gradients
    [N, P], the g_k as last sent; seen [N], the number of the round (from 1) in which that was, 0: never.
    Stages: L1 is v_k, L2 is train(Θ) (none with `gradient: full`), G is Θ.
    Sent: a gradient and a loss up; d and γ_k down, and Θ to clients that were not in the cohort before.

    Source: "Preserving Global Performance in Personalized Federated Learning", anonymous submission to ICCV (paper
    6989), Algorithm 1; M1 to M4 of its Section 4.3 are `direction: mean`, `fair: false`, `drift: false`,
    `absent: false`.
    Deviations: the paper's g_k is ∇F_k(Θ), which leaves its five local epochs without a meaning: the pseudo-gradient
    is ours. `gradient: full` has neither local training nor weight decay, which is refused. ∇F and absent clients' rows
    are scaled to length μ too, as in the authors' code (`scale: paper`: they are not), for an unscaled ∇F takes nearly
    all of λ when losses are almost equal; ∇F itself is made of the g_k, not of the ĝ_k as there. Ours: what is left out
    when; σ by the mean of the g_k as sent; a fixed γ is a least drift.
    """

    requires: ClassVar[Mapping[str, Any]] = {"training.optimiser": "sgd", "training.momentum": 0.0}
    because: ClassVar[str] = "(Θ − train(Θ)) / η is a gradient for plain SGD only, and ∇F_k(Θ) has no decay"
    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)

    gradient: Literal["pseudo", "full"] = Field(
        "pseudo", title="g_k", description="(Θ − train(Θ)) / η, or the full gradient ∇F_k(Θ), without local training"
    )
    direction: Literal["common", "mean"] = Field(
        "common", title="d", description="common descent, or −mean g (ablation M1)"
    )
    fair: bool = Field(True, title="∇F", description="whether d must bring the losses closer together (without: M2)")
    drift: bool = Field(True, description="whether personal models leave d (without: M3, v_k = Θ + η d)")
    absent: bool = Field(True, description="whether d must descend for absent clients, as last seen (without: M4)")
    gamma: float = Field(0.0, ge=0, le=1, title="γ", description="drift of every client at least; 1: trained alone")
    scale: Literal["code", "paper"] = Field(
        "code", description="rows of Q that are scaled to length μ: all, or only those of the cohort"
    )

    def required(self) -> Mapping[str, Any]:
        return {**self.requires, **({"training.weight_decay": 0.0} if self.gradient == "full" else {})}

    def ignored(self) -> tuple[str, ...]:
        untrained = ("training.local_epochs", "training.local_steps")
        return (*self.ignores, *(untrained if self.gradient == "full" else ()))

    def init(self, task: Task) -> State:
        return {
            "central": task.initial,
            "personal": task.rows(task.initial),
            "gradients": task.rows(torch.zeros_like(task.initial)),
            "seen": torch.zeros(task.n_clients, dtype=torch.int64),
        }

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        x, stages = s["central"], Stages()
        if self.gradient == "full":
            g = r.grad(x)
        else:
            theta = r.train(x)
            g, stages["L2"] = (x - theta) / r.lr, Models(theta, r.cohort)
        self._note_what_is_sent(s["seen"][r.cohort.cpu()], r)
        rows = torch.cat([g, s["gradients"][self._missing(s["seen"], r)]])
        way = self._direction(gram(rows), r.losses(x).double().cpu())
        d = way.weights.to(rows) @ rows
        eta = self.step_size(x, d, way, r)
        gamma = largest_drift(way).clamp(min=self.gamma) * self.drift
        v = x + eta * torch.lerp(d.expand_as(g), -g, gamma.to(g)[:, None])  # (−g_k − d) γ_k + d
        central = x + eta * d
        return (
            {
                "central": central,
                "personal": Rows(r.cohort, v),
                "gradients": Rows(r.cohort, g),
                "seen": s["seen"].index_fill(0, r.cohort.cpu(), r.t + 1),
            },
            {**stages, "G": Models(central)},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["personal"][r.cohort], r.cohort)

    def step_size(self, x: Tensor, d: Tensor, way: Direction, r: Round) -> float:
        """Length of the steps of Θ and the v_k along their directions: η of the round; x = Θ and d are [P]."""
        return r.lr

    def _direction(self, products: Tensor, losses: Tensor) -> Direction:
        if self.direction == "mean":
            return mean_descent(products, losses)
        return common_descent(products, losses, fair=self.fair, scale=self.scale)

    def _note_what_is_sent(self, seen: Tensor, r: Round) -> None:
        new = (seen == 0) | (seen != r.t)
        r.sent(up=r.layout.size + 1, down=r.layout.size * (1 + float(new.double().mean())) + 1)

    def _missing(self, seen: Tensor, r: Round) -> Tensor:
        """Clients seen in rounds t − τ .. t − 1 that are not in the cohort, τ = M/|S_t|."""
        before = seen > 0
        absent = before.index_fill(0, r.cohort.cpu(), False) if self.absent else torch.zeros_like(before)
        tau = float(before.index_fill(0, r.cohort.cpu(), True).sum()) / len(r.cohort)
        return (absent & (seen - 1 >= r.t - tau)).nonzero()[:, 0]


@register("s_fedpg")
class SFedPG(FedPG):
    """FedPG whose step is as long as it helps every client.

    As fedpg, with η^t in place of η: from 2^s η it is halved until

        L_k(Θ + η^t d) <= L_k(Θ) + β η^t g_k · d         for every k in S_t
        F(Θ + η^t d) <= F(Θ) + β η^t ∇F · d              while ∇F is a row of the Q last solved

    or half of it is less than (1/2)^s η σ; then

        Θ ← Θ + η^t d;  v_k ← Θ + η^t d_k

    State: as fedpg: central [P], personal [N, P], gradients [N, P], seen [N].
    Stages: as fedpg: L1 is v_k, L2 is train(Θ) (none with `gradient: full`), G is Θ.
    Sent: as fedpg, and for every η^t that is tried a number down and a loss up.

    Source: "Preserving Global Performance in Personalized Federated Learning", anonymous submission to ICCV (paper
    6989), Section 3.4, Eq. 9.
    Deviations: as fedpg. s and β are those of the authors' earlier code, for the paper's text has none; nor does it say
    which step a search takes that ends at its bound. `failing: best` is that code's: the largest that lowers Σ L_k,
    else the one with the least Σ L_k. With pseudo-gradients many searches end so, and the last step tried (`last`), the
    shortest, then hardly moves Θ. That code's bound is (1/2)^s η / σ. Ours: k and F run over clients whose gradient is
    not zero; d = 0 needs no search.
    """

    halvings: int = Field(5, ge=0, title="s", description="the search starts at 2^s η")
    armijo: float = Field(
        1e-4, gt=0, lt=1, title="β", description="share of the promised descent that a step must keep"
    )
    bound: Literal["paper", "code"] = Field("paper", description="of the search: (1/2)^s η σ, or (1/2)^s η / σ")
    failing: Literal["best", "last"] = Field(
        "best", description="step of a search that ends at its bound: the best for Σ L_k, or the last tried"
    )

    def step_size(self, x: Tensor, d: Tensor, way: Direction, r: Round) -> float:
        if not way.weights.any():
            return r.lr
        before, slopes = way.losses[way.kept], way.slopes[way.kept]
        to_fair = None if way.fair is None else way.fair @ way.products @ way.weights
        floor = r.lr * 0.5**self.halvings * (way.sigma if self.bound == "paper" else 1 / way.sigma)
        eta, tried = r.lr * 2.0**self.halvings, []
        while True:
            after = r.losses(x + eta * d).double().cpu()[way.kept]
            tried.append((eta, float(after.sum().nan_to_num(torch.inf))))
            descends = bool((after <= before + self.armijo * eta * slopes).all())
            if descends and to_fair is not None:
                descends = bool(unfairness(after) <= unfairness(before) + self.armijo * eta * to_fair)
            if descends or eta / 2 < floor:
                break
            eta /= 2
        r.sent(up=r.traffic.up + len(tried), down=r.traffic.down + len(tried))
        if descends or self.failing == "last":
            return eta
        lower = [eta for eta, total in tried if total < float(before.sum())]
        return lower[0] if lower else min(tried, key=lambda pair: pair[1])[0]
