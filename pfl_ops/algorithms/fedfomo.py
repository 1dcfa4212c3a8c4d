"""FedFomo: each client weighs others' models by how much they lower the loss on its held-out data."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from pfl_ops.algorithms.base import Algorithm, Field, Models, Round, Rows, Share, Stages, State, Task, Update, register


@register("fedfomo")
class FedFomo(Algorithm):
    """Every client mixes the models of those whose step lowers its own validation loss.

    In each round every client k of the cohort, θ_k^old being its model after its last mixing, D_k^train and D_k^val two
    parts of its data:

        θ_k ← train(θ_k^old) on D_k^train                          uploaded
        w_kj = (F_k^val(θ_k^old) − F_k^val(θ_j)) / ‖θ_j − θ_k^old‖   for its M candidates j, itself among them
        P_kj ← P_kj + w_kj
        w_kj ← max(w_kj, 0) / Σ_j max(w_kj, 0)
        θ_k ← θ_k^old + Σ_j w_kj (θ_j − θ_k^old)                   no w_kj positive: θ_k^old

    Candidates are models uploaded in this round. Each of the M − 1 places beside its own takes the best remaining j by
    the affinity P_kj, or with probability max(0, ε − δ t) a random one; P starts as the identity.

    State: theta [N, P], the θ_k after mixing, all starting at Θ⁰; affinity [N, N], P without its first identity.
    Stages: L1 is the mixed θ_k, L2 the trained θ_k, G the mean of the uploaded θ_k.
    Sent: one model up and M − 1 down, for each client of the cohort.

    Source: Zhang, Sapra, Fidler, Yeung, Alvarez, "Personalized Federated Learning with First Order Model Optimization",
    ICLR 2021, Algorithm 1 (arXiv 2012.08565).
    Deviations: that a client is its own candidate could not be confirmed. Ours: ties of P are broken at random; a
    client without a second sample has none to judge on and keeps θ_k^old. The authors' code measures distances in L1
    (`distance`), divides by |Σ w| and keeps negative weights (`normalise: absolute`), also where no w_kj is positive: a
    client then steps away from its candidates. A public library keeps the trained θ_k where none is positive
    (`fallback`), and its server sends a client's own model back to it as one of the M (`own: sent`, M down).
    """

    ignores: ClassVar[tuple[str, ...]] = ("participation.weighting",)
    added: ClassVar[Mapping[str, Any]] = {"own": "kept"}

    candidates: int = Field(
        5, ge=1, le=10_000, title="M", description="models that a client judges a round, its own among them"
    )
    held_share: float = Field(
        0.2, gt=0, lt=1, description="share of a client's data that it judges on; the rest trains"
    )
    explore: float = Field(
        0.3, ge=0, le=1, title="ε", description="probability of a random candidate in the first round"
    )
    explore_decay: float = Field(0.05, ge=0, title="δ", description="what that probability loses in each round")

    distance: Literal["l2", "l1"] = Field("l2", description="norm that a loss's gain is divided by")
    normalise: Literal["positive", "absolute"] = Field(
        "positive", description="max(w, 0) / Σ max(w, 0), or w / |Σ w| with its negative parts"
    )
    fallback: Literal["old", "trained"] = Field(
        "old",
        description="model where no w is positive: θ_k^old (normalise absolute: the mixture of negative w), or its own "
        "trained θ_k",
    )
    own: Literal["kept", "sent"] = Field(
        "kept",
        description="a client's own model among its candidates: the client keeps it, or the server sends it back",
    )

    def init(self, task: Task) -> State:
        return {"theta": task.rows(task.initial), "affinity": task.rows(task.initial.new_zeros(task.n_clients))}

    def round(self, s: State, r: Round) -> tuple[Update, Stages]:
        own, held = Share(0, 1 - self.held_share), Share(1 - self.held_share, 1)
        old, affinity = s["theta"][r.cohort], s["affinity"][r.cohort]
        theta = r.train(old, share=own)

        known = affinity[:, r.cohort] + torch.eye(len(old)).to(affinity)  # P
        explore = max(0.0, self.explore - self.explore_decay * r.t)
        who = self._draw(known, explore, r.rng("candidates")).to(known.device)
        gain = r.losses(old, share=held)[:, None] - r.cross(theta, who, share=held)
        w = torch.zeros_like(known).scatter_(1, who, _finite(gain / _distances(theta, who, old, self.distance)))

        share = w.clamp(min=0) if self.normalise == "positive" else w
        total = share.sum(dim=1, keepdim=True).abs()
        share = share / total.where(total > 0, 1)
        mixed = share @ theta + (1 - share.sum(dim=1, keepdim=True)) * old  # = θ^old + Σ w (θ_j − θ^old)
        if self.fallback == "trained":
            mixed = torch.where((w > 0).any(dim=1, keepdim=True), mixed, theta)
        affinity[:, r.cohort] += w
        r.sent(down=(who.shape[1] - (self.own == "kept")) * r.layout.size)
        return (
            {"theta": Rows(r.cohort, mixed), "affinity": Rows(r.cohort, affinity)},
            {"L2": Models(theta, r.cohort), "G": Models(r.mean(theta))},
        )

    def personal(self, s: State, r: Round) -> Models:
        return Models(s["theta"][r.cohort], r.cohort)

    def _draw(self, affinity: Tensor, explore: float, rng: np.random.Generator) -> Tensor:
        """Each client's candidates, itself first, as positions in the cohort: int64 [C, min(M, C)]."""
        found = []
        for k, row in enumerate(affinity.cpu().numpy()):
            ranked = [int(j) for j in np.lexsort((rng.random(len(row)), -row)) if j != k]
            picked = [k]
            while ranked and len(picked) < self.candidates:
                picked.append(ranked.pop(int(rng.integers(len(ranked))) if rng.random() < explore else 0))
            found.append(picked)
        return torch.tensor(found)


def _distances(theta: Tensor, who: Tensor, old: Tensor, norm: Literal["l2", "l1"] = "l2") -> Tensor:
    """‖θ_j − θ_k^old‖ of each client's candidates, [C, M]."""
    return torch.stack([(theta[j] - old).norm(p=int(norm[1]), dim=1) for j in who.T], dim=1)


def _finite(w: Tensor) -> Tensor:
    """0 where there is no distance, nothing to judge on, or a loss that has overflowed."""
    return torch.nan_to_num(w, nan=0.0, posinf=0.0, neginf=0.0)
